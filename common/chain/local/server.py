"""The WebSocket side: frames in, replies and notifications out, one writer and one bounded queue a connection.

A client that doesn't read is cut off when its queue is full. Nothing a client sends can stop the node: what isn't
JSON-RPC gets an error, and an exception in a handler is logged with its traceback and answered as internal error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

from loguru import logger
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from common import timeouts
from common.chain.local.node import Node
from common.chain.local.pool import Watcher
from common.chain.local.rpc import RpcError, call_method

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
MAX_FRAME_BYTES = 4 << 20
MAX_BATCH = 100
MAX_QUEUED = 4096
MAX_SUBSCRIPTIONS = 256

# Whoever probes the port makes websockets log an error with a traceback; it says nothing to an operator.
_handshakes = logging.getLogger("brigade.chain.websockets")
_handshakes.setLevel(logging.CRITICAL)


class Connection:
    """One client."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.outgoing: asyncio.Queue[str] = asyncio.Queue(MAX_QUEUED)
        self.overflowed = asyncio.Event()
        self._ids = itertools.count(1)
        self._cancels: dict[str, Callable[[], None]] = {}

    # -- what rpc.Session asks for ---------------------------------------------------------------------------

    def subscribe(self, method: str) -> tuple[str, Watcher]:
        """Open a subscription; pushes after its end are dropped."""
        if len(self._cancels) >= MAX_SUBSCRIPTIONS:
            raise RpcError(INVALID_REQUEST, "too many subscriptions on this connection")
        subscription = f"{next(self._ids):x}"
        self._cancels[subscription] = lambda: None

        def push(result: Any) -> None:
            if subscription in self._cancels:
                params = {"subscription": subscription, "result": result}
                self.send({"jsonrpc": "2.0", "method": method, "params": params})

        return subscription, push

    def on_cancel(self, subscription: str, cancel: Callable[[], None]) -> None:
        """Call ``cancel`` when the subscription ends."""
        self._cancels[subscription] = cancel

    def unsubscribe(self, subscription: str) -> bool:
        """End a subscription."""
        cancel = self._cancels.pop(subscription, None)
        if cancel is not None:
            cancel()
        return cancel is not None

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in list(self._cancels):
            self.unsubscribe(subscription)

    # -- frames ----------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Queue a message; gives the connection up when the client doesn't keep pace."""
        try:
            self.outgoing.put_nowait(json.dumps(message, separators=(",", ":")))
        except asyncio.QueueFull:
            self.overflowed.set()

    def receive(self, frame: str | bytes) -> None:
        """Answer one frame: a request or a batch."""
        try:
            message = json.loads(frame)
        except (ValueError, RecursionError):
            self.send(_error(None, RpcError(PARSE_ERROR, "Parse error")))
            return
        if not isinstance(message, list):
            self.send(self._reply(message))
        elif 0 < len(message) <= MAX_BATCH:
            self.send([self._reply(request) for request in message])
        else:
            self.send(_error(None, RpcError(INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} requests")))

    def _reply(self, request: Any) -> dict[str, Any]:
        request_id = request.get("id") if isinstance(request, dict) else None
        try:
            method, params = _parse(request)
            return {"jsonrpc": "2.0", "id": request_id, "result": call_method(self, method, params)}
        except RpcError as error:
            return _error(request_id, error)
        except Exception:  # noqa: BLE001 - the edge of the process: one bad request must not end the node
            logger.exception("a request failed: {}", str(request)[:200])
            return _error(request_id, RpcError(INTERNAL_ERROR, "Internal error: see the log of the local chain"))


def _parse(request: Any) -> tuple[str, list[Any]]:
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        raise RpcError(INVALID_REQUEST, "Invalid request")
    params = request.get("params") or []
    if not isinstance(params, list):
        raise RpcError(INVALID_REQUEST, "params must be a list")
    return request["method"], params


def _error(request_id: Any, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": error.to_json()}


async def _handle(node: Node, socket: ServerConnection) -> None:
    connection = Connection(node)
    tasks = [
        asyncio.create_task(_write(connection, socket)),
        asyncio.create_task(_read(connection, socket)),
        asyncio.create_task(connection.overflowed.wait()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        connection.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await socket.close()


async def _write(connection: Connection, socket: ServerConnection) -> None:
    try:
        while True:
            await socket.send(await connection.outgoing.get())
    except ConnectionClosed:
        return


async def _read(connection: Connection, socket: ServerConnection) -> None:
    try:
        async for frame in socket:
            connection.receive(frame)
    except ConnectionClosed:
        return


async def listen(node: Node, host: str, port: int) -> Server:
    """Serve ``node`` on ``ws://host:port``; port 0 takes a free one. ``OSError`` when the port is taken."""

    async def handle(socket: ServerConnection) -> None:
        await _handle(node, socket)

    options: dict[str, Any] = {"max_size": MAX_FRAME_BYTES, "ping_interval": None, "compression": None}
    options["close_timeout"] = timeouts.PEER_CLOSE_S
    return await serve(handle, host, port, logger=_handshakes, **options)


def bound_port(server: Server) -> int:
    """The port that the server listens on."""
    return int(next(iter(server.sockets)).getsockname()[1])
