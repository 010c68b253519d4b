#!/usr/bin/env python3
"""Stream a completion with the OpenAI SDK, token by token, and tell how fast it came.

    python serving/clients/stream.py --prompt "A list is"

The SDK (`pip install openai`) is there wherever vLLM is.
"""

import argparse
import os
import re
import sys
import time

import openai

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Of answers that are no JSON, another document, or nested too deep.
NOT_OPENAI = (ValueError, LookupError, AttributeError, TypeError, RecursionError)


def stream(client: openai.OpenAI, model: str, prompt: str, max_tokens: int) -> tuple[float, int]:
    """Print the text as it arrives; return seconds to the first piece, and how many tokens."""
    start, first_seconds, tokens = time.monotonic(), 0.0, 0
    chunks = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    print(prompt, end="")
    for chunk in chunks:
        if chunk.choices:
            first_seconds = first_seconds or time.monotonic() - start
            print(printable(chunk.choices[0].text), end="", flush=True)
        if chunk.usage:  # the last chunk: counts and no text
            tokens = chunk.usage.completion_tokens
    print()
    return first_seconds, tokens


def printable(text: str) -> str:
    """The text without characters that would act on the terminal, which a server may send."""
    return CONTROLS.sub("\ufffd", text)


def tell(text: str) -> int:
    """Print an error as one line; returns the exit code."""
    print(printable(" ".join(text.split())), file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Stream a completion with the OpenAI SDK.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument("--prompt", default="Return a list of")
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    key = os.environ.get("VLLM_API_KEY") or "none"  # the SDK wants one, whether the server does
    client = openai.OpenAI(base_url=f"{options.base_url.rstrip('/')}/v1", api_key=key)
    try:
        model = options.model or client.models.list().data[0].id
        seconds, tokens = stream(client, model, options.prompt, options.max_tokens)
    except openai.APIConnectionError as error:
        return tell(f"No server answers at {options.base_url}: {error}")
    except openai.APIStatusError as error:
        return tell(f"The server refused: {error.message:.2000}")
    except (openai.OpenAIError, *NOT_OPENAI) as error:
        return tell(f"No OpenAI server answers at {options.base_url}: {error!r:.200}")
    print(f"first token after {seconds:.3f} s, {tokens} tokens", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
