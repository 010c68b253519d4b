#!/usr/bin/env python3
"""Ask a running server for one completion; needs nothing but Python.

python serving/clients/complete.py --prompt "A list is"
"""

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 120


def request(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET, or POST if there is a body; both sides speak JSON."""
    data = None if body is None else json.dumps(body).encode()
    message = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(message, timeout=TIMEOUT_SECONDS) as answer:
        return dict(json.load(answer))


def first_model(base_url: str) -> str:
    """The name of the first model that the server lists."""
    return str(request(f"{base_url}/v1/models")["data"][0]["id"])


def complete(base_url: str, model: str, prompt: str, max_tokens: int) -> str:
    """The text that the model puts after the prompt, the likeliest token at every step."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return str(request(f"{base_url}/v1/completions", body)["choices"][0]["text"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a running server for one completion.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument("--prompt", default="Return a list of")
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    base_url = options.base_url.rstrip("/")
    try:
        model = options.model or first_model(base_url)
        print(options.prompt + complete(base_url, model, options.prompt, options.max_tokens))
    except urllib.error.HTTPError as error:
        print(f"The server refused: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    except urllib.error.URLError as error:
        print(f"No server answers at {base_url}: {error.reason}", file=sys.stderr)
        return 1
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        print(f"No OpenAI server answers at {base_url}: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
