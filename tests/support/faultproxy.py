"""A TCP proxy that misbehaves on command: slow, late, cut off, deaf.

It runs in a thread with a loop of its own and is controlled from the test's thread. Bytes pass unchanged, the Host
header too, so signed requests survive. Faults with a count are used up one by one; the others last until reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from types import TracebackType
from urllib.parse import urlsplit

_BLOCK_BYTES = 16 * 1024
_NEVER = 1 << 62


class _Cut(Exception):
    """This connection is to be reset now."""


class _Truncated(Exception):
    """This connection is to be closed now, after what was sent has arrived."""


class FaultProxy:
    """``with FaultProxy("http://127.0.0.1:9000") as proxy: …`` and then talk to ``proxy.endpoint``."""

    def __init__(self, target: str) -> None:
        url = urlsplit(target)
        self._target = (url.hostname, url.port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._free_at_s = 0.0
        self.port = 0
        # What a test reads.
        self.connections = 0
        self.up_bytes = 0  # forwarded to the target
        self.down_bytes = 0  # forwarded to the client
        # What a test sets; the first three last, the counted ones are used up.
        self.rate_bytes_per_s: float | None = None  # shared by all connections and both directions
        self.latency_s = 0.0  # added to each block
        self.black_hole = False  # connections are accepted and nothing is ever forwarded
        self._lost_replies = 0
        self._up_cuts: list[int] = []
        self._down_cuts: list[int] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_replies(self, count: int = 1) -> None:
        """The next requests reach the target whole, but their connections are reset when the replies come."""
        self._lost_replies = count

    def cut_requests(self, *after_bytes: int) -> None:
        """Reset the next connections after so many bytes from the client, one connection for each number."""
        self._up_cuts = list(after_bytes)

    def cut_replies(self, *after_bytes: int) -> None:
        """Close the next connections after so many bytes to the client, one connection for each number; those bytes
        arrive for certain, which a reset would not promise."""
        self._down_cuts = list(after_bytes)

    def cut_all(self) -> None:
        """Reset every open connection."""
        self._call(self._reset_all)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _call(self, action: object) -> None:
        done = threading.Event()

        def run() -> None:
            action()  # type: ignore[operator]
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        tasks = list(self._connections)
        self._reset_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reset_all(self) -> None:
        for task in self._connections:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections += 1
        try:
            await self._connect(reader, writer)
        except _Truncated:
            writer.close()
        except (_Cut, OSError, asyncio.CancelledError):
            _reset(writer)
        finally:
            self._connections.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_limit = self._up_cuts.pop(0) if self._up_cuts else _NEVER
        down_limit = self._down_cuts.pop(0) if self._down_cuts else _NEVER
        their_reader, their_writer = await asyncio.open_connection(*self._target)
        up = asyncio.ensure_future(self._pump(reader, their_writer, up_limit, is_up=True))
        down = asyncio.ensure_future(self._pump(their_reader, writer, down_limit, is_up=False))
        try:
            done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_EXCEPTION)
            for pump in done:
                pump.result()
            writer.close()
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            _reset(their_writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_bytes: int, *, is_up: bool
    ) -> None:
        passed = 0
        while block := await reader.read(_BLOCK_BYTES):
            if self.black_hole:
                continue
            if not is_up:
                self._lose_reply(block)
            block = block[: limit_bytes - passed]
            await self._delay(len(block))
            passed += len(block)
            writer.write(block)
            await writer.drain()
            self._count(len(block), is_up)
            if passed >= limit_bytes:
                raise _Cut if is_up else _Truncated
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _lose_reply(self, block: bytes) -> None:
        """An interim "100 Continue" passes, since the request has not been sent yet."""
        if self._lost_replies and not block.startswith(b"HTTP/1.1 100"):
            self._lost_replies -= 1
            raise _Cut

    async def _delay(self, size_bytes: int) -> None:
        """Latency, then this block's turn in the shared token bucket."""
        now_s = self._loop.time()
        wait_s = self.latency_s
        if self.rate_bytes_per_s:
            start_s = max(now_s, self._free_at_s)
            self._free_at_s = start_s + size_bytes / self.rate_bytes_per_s
            wait_s += self._free_at_s - now_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _count(self, size_bytes: int, is_up: bool) -> None:
        if is_up:
            self.up_bytes += size_bytes
        else:
            self.down_bytes += size_bytes


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: the other side sees "connection reset", as when a machine dies."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
