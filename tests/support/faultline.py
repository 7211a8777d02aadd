"""One connection through the fault proxy: two pumps, and what may befall them.

Each pump has a reading and a writing half with a queue of blocks between them, so that latency delays bytes without
taking rate from them. A fault is decided on when a block is read and takes effect in order, after the bytes before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from dataclasses import dataclass, field

from tests.support.faults import Counters, Faults
from tests.support.link import BLOCK_BYTES, Bucket, Link

_QUEUED_BLOCKS = 256
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE|PATCH) (\S+) HTTP/1\.[01]\r\n")


class _Cut(Exception):
    """This connection is to be reset now."""


class _Truncated(Exception):
    """This connection is to be closed now, after what was sent has arrived."""


class _Answered(Exception):
    """This request gets an answer that does not come from the target; then the connection ends."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply


@dataclass
class _Pump:
    """One direction of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    bucket: Bucket
    cut_at: int | None
    flip_at: int | None
    is_up: bool
    seen_bytes: int = 0
    swallowed: bool = False
    queue: asyncio.Queue[tuple[float, bytes | Exception]] = field(
        default_factory=lambda: asyncio.Queue(maxsize=_QUEUED_BLOCKS)
    )


class Line:
    """A client's connection, the one to the target, and the pumps between them."""

    def __init__(self, faults: Faults, link: Link, counters: Counters) -> None:
        self._faults, self._link, self._counters = faults, link, counters
        self._awaits_request = True

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
        """Until one side ends, a fault ends it, or it is cancelled."""
        try:
            await self._run(reader, writer, target)
        except _Truncated:
            self._counters.cuts += 1
            writer.close()
        except _Cut:
            self._counters.cuts += 1
            _reset(writer)
        except _Answered as answered:
            await _last_words(reader, writer, answered.reply)
        except (OSError, asyncio.CancelledError):
            _reset(writer)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
        faults = self._faults
        up_cut, up_flip, down_cut, down_flip = map(
            _next, (faults.up_cuts, faults.up_flips, faults.down_cuts, faults.down_flips)
        )
        await faults.running.wait()
        if faults.black_hole:
            await self._hole(reader)
        their_reader, their_writer = await asyncio.open_connection(*target)
        up = _Pump(reader, their_writer, self._link.up, up_cut, up_flip, True)
        down = _Pump(their_reader, writer, self._link.down, down_cut, down_flip, False)
        halves = [asyncio.ensure_future(work) for pump in (up, down) for work in (self._read(pump), self._write(pump))]
        try:
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
            for half in done:
                half.result()
            writer.close()
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            _reset(their_writer)

    async def _hole(self, reader: asyncio.StreamReader) -> None:
        """Nothing that comes is passed on, and nothing is answered, for as long as the client cares to wait."""
        while self._faults.black_hole and (block := await reader.read(BLOCK_BYTES)):
            self._counters.swallowed_bytes += len(block)
        raise _Cut

    async def _read(self, pump: _Pump) -> None:
        loop = asyncio.get_running_loop()
        while block := await pump.reader.read(pump.bucket.block_bytes):
            await self._faults.running.wait()
            if self._swallows(pump, len(block)):
                continue
            fate: Exception | None = None
            if pump.is_up:
                self._answer(pump, block)
            else:
                fate = self._reply(block)
            if fate is None:
                block, fate = self._damage(pump, block)
                await asyncio.sleep(pump.bucket.take(len(block), loop.time()))
                if block:
                    await pump.queue.put((loop.time() + self._faults.latency_s, block))
            if fate is not None:
                await pump.queue.put((loop.time(), fate))
                return
        await pump.queue.put((loop.time() + self._faults.latency_s, b""))  # the end of this direction

    async def _write(self, pump: _Pump) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, item = await pump.queue.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await self._faults.running.wait()
            if isinstance(item, Exception):
                raise item
            if not item:
                break
            self._count(pump, len(item))  # before a test can see the bytes
            pump.writer.write(item)
            await pump.writer.drain()
        with contextlib.suppress(OSError):
            pump.writer.write_eof()

    def _swallows(self, pump: _Pump, size_bytes: int) -> bool:
        """A connection that lost bytes in a black hole can't go on after it."""
        if self._faults.black_hole:
            pump.swallowed = True
            self._counters.swallowed_bytes += size_bytes
        elif pump.swallowed:
            raise _Cut
        return pump.swallowed

    def _answer(self, pump: _Pump, block: bytes) -> None:
        """Answer the request that begins here if an answer is meant for it; then the connection ends."""
        found = _REQUEST.match(block) if self._awaits_request else None
        if found is None:
            return
        self._awaits_request = False
        method, path = found[1].decode(), found[2].decode("latin-1")
        if method == "PUT":
            self._counters.uploads += 1
            if self._faults.upload_flips:
                pump.flip_at = pump.seen_bytes + self._faults.upload_flips.pop(0)
        answer = next((one for one in self._faults.answers if one.meets(method, path)), None)
        if answer is not None:
            if answer.left is not None:
                answer.left -= 1
            self._counters.answered += 1
            raise _Answered(answer.encode(method))

    def _reply(self, block: bytes) -> Exception | None:
        """An interim "100 Continue" is no reply, since the request has not been sent yet."""
        if block.startswith(b"HTTP/1.1 100"):
            return None
        self._awaits_request = True
        if self._faults.lost_replies:
            self._faults.lost_replies -= 1
            self._counters.lost_replies += 1
            return _Cut()
        return None

    def _damage(self, pump: _Pump, block: bytes) -> tuple[bytes, Exception | None]:
        """The block as it goes on, and what ends the connection after it."""
        start, pump.seen_bytes = pump.seen_bytes, pump.seen_bytes + len(block)
        if pump.flip_at is not None and start <= pump.flip_at < pump.seen_bytes:
            at = pump.flip_at - start
            block = block[:at] + bytes([block[at] ^ 0xFF]) + block[at + 1 :]
            self._counters.flipped_bytes += 1
        if pump.cut_at is None or pump.seen_bytes < pump.cut_at:
            return block, None
        return block[: pump.cut_at - start], _Cut() if pump.is_up else _Truncated()

    def _count(self, pump: _Pump, size_bytes: int) -> None:
        if pump.is_up:
            self._counters.up_bytes += size_bytes
        else:
            self._counters.down_bytes += size_bytes


async def _last_words(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes) -> None:
    """Send ``reply`` and read on until the client is done: closing earlier would reset it before it has read."""
    try:
        writer.write(reply)
        writer.write_eof()
        while await reader.read(BLOCK_BYTES):
            pass
        writer.close()
    except (OSError, asyncio.CancelledError):
        _reset(writer)


def _next(numbers: list[int]) -> int | None:
    return numbers.pop(0) if numbers else None


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: the other side sees "connection reset", as when a machine dies."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
