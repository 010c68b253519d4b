#!/usr/bin/env python3
"""Ask a running server for one completion; needs nothing but Python.

python serving/clients/complete.py --prompt "A list is"
"""

import argparse
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

TIMEOUT_SECONDS = 120
ERROR_BYTES = 2000
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Of answers that are no JSON, another document, or nested too deep.
NOT_OPENAI = (ValueError, LookupError, TypeError, RecursionError)


def request(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET, or POST if there is a body; both sides speak JSON."""
    data = None if body is None else json.dumps(body).encode()
    message = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    if key := os.environ.get("VLLM_API_KEY"):
        message.add_unredirected_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(message, timeout=TIMEOUT_SECONDS) as answer:
        return dict(json.load(answer))


def first_model(base_url: str) -> str:
    """The name of the first model that the server lists."""
    return str(request(f"{base_url}/v1/models")["data"][0]["id"])


def complete(base_url: str, model: str, prompt: str, max_tokens: int) -> str:
    """The text that the model puts after the prompt, the likeliest token at every step."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return str(request(f"{base_url}/v1/completions", body)["choices"][0]["text"])


def printable(text: str) -> str:
    """The text without characters that would act on the terminal, which a server may send."""
    return CONTROLS.sub("\ufffd", text)


def tell(text: str) -> int:
    """Print an error as one line; returns the exit code."""
    print(printable(" ".join(text.split())), file=sys.stderr)
    return 1


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
        text = complete(base_url, model, options.prompt, options.max_tokens)
    except urllib.error.HTTPError as error:
        with suppress(OSError, http.client.HTTPException):  # it may break off
            return tell(f"The server refused: {error.read(ERROR_BYTES).decode(errors='replace')}")
        return tell(f"The server refused: {error}")
    except urllib.error.URLError as error:
        return tell(f"No server answers at {base_url}: {error.reason}")
    except (OSError, http.client.HTTPException, *NOT_OPENAI) as error:
        return tell(f"No OpenAI server answers at {base_url}: {error!r:.200}")
    print(options.prompt + printable(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
