"""uvicorn in the caller's event loop: one worker, bounded, on a socket that is bound before anything else starts.

Binding first means that a port that is taken is one clear line at start, and that port 0 can be read back. Connections
are bounded by ``door``, not by uvicorn's ``limit_concurrency``: that one counts silent strangers and refuses members.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from common import timeouts
from common.errors import Rejected, SetupError
from validator.api.door import Door, guarded
from validator.api.security import error_response

BACKLOG = 512


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. SetupError when the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise SetupError(f"can't listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
    sock.setblocking(False)
    return sock


def unambiguous(app: ASGIApp) -> ASGIApp:
    """``app`` for requests with one length. Of two, a proxy before us may believe the other: smuggled requests."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if not {b"content-length", b"transfer-encoding"} <= names:
            await app(scope, receive, send)
            return
        refusal = error_response(Rejected("bad_message", "give Content-Length or Transfer-Encoding, not both"))
        refusal.headers["connection"] = "close"
        await refusal(scope, receive, send)

    return answer


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process that embeds it decides when to end."""

    def __init__(self, app: FastAPI, door: Door | None = None, head_s: float = timeouts.REQUEST_HEAD_S) -> None:
        config = uvicorn.Config(
            unambiguous(app),
            http=guarded(Door() if door is None else door, head_s),
            ws="none",
            interface="asgi3",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=timeouts.KEEP_ALIVE_S,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGINT and SIGTERM alone."""
        yield

    async def run_on(self, sock: socket.socket) -> None:
        """Serve until cancelled."""
        await self.serve([sock])
