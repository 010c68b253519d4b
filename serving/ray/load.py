"""Keep a number of requests going against an OpenAI endpoint, and count what is lost.

    python serving/ray/load.py --requests 10000 --concurrency 32 --output load.json

A request whose connection broke, or that got a 5xx, is sent again: a retry. One that gets no
answer in all its tries is lost, and then the exit code is 3. SIGINT sends no more and waits for
the answers under way; a second one ends the run with what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

TRIES = 8
LOST = 3  # exit code; the record is written all the same
PAUSE_SECONDS = 0.5  # before the second try; it doubles


class Load:
    """What has come of the requests so far."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # by the model that answered
        self.retries: Counter[str] = Counter()  # by what went wrong
        self.lost: list[str] = []
        self.seconds: list[float] = []  # from the first try to the answer
        self.begun = time.monotonic()
        self.is_stopped = False

    def stop(self) -> None:
        """Let no new request begin, and the next SIGINT raise."""
        self.is_stopped = True
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def record(self) -> dict[str, Any]:
        """All of it, with the percentiles of the time."""
        ordered = sorted(self.seconds)
        ranks = {name: int(len(ordered) * share) for name, share in (("p50", 0.5), ("p99", 0.99))}
        took = {name: round(ordered[rank], 3) for name, rank in ranks.items()} if ordered else {}
        return {
            "answered": len(ordered),
            "answers_by_model": dict(self.answers),
            "retries": dict(self.retries),
            "lost": len(self.lost),
            "lost_reasons": sorted(set(self.lost)),
            "wall_seconds": round(time.monotonic() - self.begun, 1),
            "request_seconds": {**took, "max": round(ordered[-1], 3)} if ordered else {},
        }


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], load: Load) -> None:
    """Send one request until it is answered or TRIES are used up."""
    begun, problem = time.monotonic(), ""
    for attempt in range(TRIES):
        if attempt:
            load.retries[problem] += 1
            await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            async with session.post(url, json=body) as response:
                problem = f"HTTP {response.status}"
                if response.status < 500:
                    response.raise_for_status()
                    load.answers[(await response.json())["model"]] += 1
                    load.seconds.append(time.monotonic() - begun)
                    return
        except aiohttp.ClientResponseError:
            break  # the request itself is refused
        except (KeyError, TypeError, ValueError):
            problem = "not an answer of the API"
            break
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = type(error).__name__
    load.lost.append(problem)


async def run(options: argparse.Namespace, load: Load) -> None:
    """Ask from so many tasks at once until all requests are sent, or the time is up."""
    numbers = iter(range(options.requests))
    url = f"{options.base_url}/v1/completions"
    timeout = aiohttp.ClientTimeout(total=options.timeout)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, load.stop)

    async def keep_asking(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            if load.is_stopped or time.monotonic() - load.begun > options.seconds:
                return
            body = {"model": options.model, "prompt": f"def f{number}(", "temperature": 0}
            await ask(session, url, {**body, "max_tokens": options.max_tokens}, load)
            if number % 100 == 0:
                print(f"{len(load.seconds)} answered, sent again: {dict(load.retries)}", flush=True)

    connector = aiohttp.TCPConnector(limit=options.concurrency)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(keep_asking(session) for _ in range(options.concurrency)))


def positive(text: str) -> float:
    """A number over 0; argparse names the option of another."""
    number = float(text)
    if not number > 0:
        raise ValueError
    return number


def count(text: str) -> int:
    """A whole number over 0."""
    return int(positive(str(int(text))))


def main() -> None:
    """Read the options, run, and print the record or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="model", help="the model to ask (default: the split)")
    parser.add_argument("--requests", type=count, default=1000, help="how many, unless time is up")
    parser.add_argument(
        "--seconds", type=positive, default=float("inf"), help="when to send no more"
    )
    parser.add_argument("--concurrency", type=count, default=32, help="requests at a time")
    parser.add_argument("--max-tokens", type=count, default=4, help="tokens of each answer")
    parser.add_argument("--timeout", type=positive, default=120, help="seconds for one try")
    parser.add_argument("--output", type=Path, help="where to write the JSON")
    options, load = parser.parse_args(), Load()
    if not options.base_url.startswith(("http://", "https://")):
        parser.error(f"--base-url {options.base_url} is no address: give one like http://HOST:PORT")
    if options.output and (options.output.is_dir() or not options.output.parent.is_dir()):
        parser.error(f"--output {options.output} cannot be written: name a file in a folder")
    try:
        asyncio.run(run(options, load))
    except KeyboardInterrupt:
        print("stopped: the record is of what was answered by then")
    text = json.dumps(load.record(), indent=1) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    if load.lost or not load.seconds:
        raise SystemExit(LOST)


if __name__ == "__main__":
    main()
