#!/usr/bin/env python3
"""Ask a running server for one completion; `--stream` prints it as it comes, and tells how fast.

    python serving/clients/complete.py --prompt "A list is"

It needs nothing but Python; `--stream` the OpenAI SDK, which is there wherever vLLM is.
"""

import argparse
import http.client
import json
import os
import re
import sys
import time
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


def complete(base_url: str, model: str, prompt: str, max_tokens: int) -> int:
    """Print a prompt and what the model puts after it, the likeliest token at every step."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    try:
        body["model"] = model or request(f"{base_url}/v1/models")["data"][0]["id"]
        text = str(request(f"{base_url}/v1/completions", body)["choices"][0]["text"])
    except urllib.error.HTTPError as error:
        with suppress(OSError, http.client.HTTPException):  # it may break off
            return tell(f"The server refused: {error.read(ERROR_BYTES).decode(errors='replace')}")
        return tell(f"The server refused: {error}")
    except urllib.error.URLError as error:
        return tell(f"No server answers at {base_url}: {error.reason}")
    except (OSError, http.client.HTTPException, *NOT_OPENAI) as error:
        return tell(f"No OpenAI server answers at {base_url}: {error!r:.200}")
    print(prompt + printable(text))
    return 0


def stream(base_url: str, model: str, prompt: str, max_tokens: int) -> int:
    """Print the text as it arrives; tell the seconds to the first piece, and how many tokens."""
    import openai

    key = os.environ.get("VLLM_API_KEY") or "none"  # the SDK wants one, whether the server does
    start, first_seconds, tokens, begun = time.monotonic(), 0.0, 0, False
    try:
        client = openai.OpenAI(base_url=f"{base_url}/v1", api_key=key)
        chunks = client.completions.create(
            model=model or client.models.list().data[0].id,
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in chunks:
            if chunk.choices:
                first_seconds = first_seconds or time.monotonic() - start
                before = "" if begun else prompt
                print(before + printable(chunk.choices[0].text), end="", flush=True)
                begun = True
            if chunk.usage:  # the last chunk: counts and no text
                tokens = chunk.usage.completion_tokens
    except BrokenPipeError:  # our reader has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except openai.APIStatusError as error:
        return tell(f"The server refused: {error.message:.2000}", begun)
    except Exception as error:  # of the SDK's transport too, which differs between releases
        if begun:
            return tell(f"The answer of {base_url} breaks off: {error!r:.200}", begun)
        if isinstance(error, openai.APIConnectionError):
            return tell(f"No server answers at {base_url}: {error}")
        return tell(f"No OpenAI server answers at {base_url}: {error!r:.200}")
    print()
    print(f"first token after {first_seconds:.3f} s, {tokens} tokens", file=sys.stderr)
    return 0


def printable(text: str) -> str:
    """The text without characters that would act on the terminal, which a server may send."""
    return CONTROLS.sub("\ufffd", text)


def tell(text: str, begun: bool = False) -> int:
    """Print an error as one line, below an answer that has `begun`; returns the exit code."""
    if begun:
        print(flush=True)
    print(printable(" ".join(text.split())), file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a running server for one completion.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="default: the first that the server lists")
    parser.add_argument("--prompt", default="Return a list of")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--stream", action="store_true", help="token by token; needs `openai`")
    options = parser.parse_args()
    ask = stream if options.stream else complete
    base_url = options.base_url.rstrip("/")
    return ask(base_url, options.model, options.prompt, options.max_tokens)


if __name__ == "__main__":
    sys.exit(main())
