"""A small server of our own on this machine, and a question to any server on it."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

Answer = tuple[int, Mapping[str, str], bytes]


@contextmanager
def answering(
    answer: Callable[[str], Answer], keys: set[str | None] | None = None
) -> Iterator[str]:
    """The URL of a server that answers to a path with a status, headers and a body.

    What a request sends for authorization is added to `keys`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if keys is not None:
                keys.add(self.headers.get("Authorization"))
            status, headers, body = answer(urlsplit(self.path).path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def posted(url: str, body: Mapping[str, object]) -> Any:
    """The JSON document with which a server answers one; no proxy stands between."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with build_opener(ProxyHandler({})).open(request, timeout=300) as response:
        return json.load(response)
