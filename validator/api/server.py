"""uvicorn in the caller's event loop: one worker, bounded, on a socket that is bound before anything else starts.

Binding first means that a port that is taken is one clear line at start, and that port 0 can be read back.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from common import timeouts
from common.errors import SetupError

BACKLOG = 512
MAX_CONNECTIONS = 1024


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


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process that embeds it decides when to end."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=timeouts.KEEP_ALIVE_S,
            limit_concurrency=MAX_CONNECTIONS,
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
