"""A tiny HTTP server that answers what a test tells it to, for the misdeeds that a real store does not commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Reply:
    """``headers`` go out as they are; Content-Length is added unless given (None leaves it out, and the connection's
    end ends the body)."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str | None] = field(default_factory=dict)


class ScriptedServer:
    """``with ScriptedServer(answer) as server: … server.url("/x")``; ``server.requests`` holds what was asked."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.requests: list[Request] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # answers "Expect: 100-continue", for which boto3 waits

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                outer.requests.append(request)
                self._send(answer(request))

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def _send(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in ({"content-length": str(len(reply.body))} | reply.headers).items():
                    if value is not None:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_: object) -> None:
                """Say nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
