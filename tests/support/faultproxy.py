"""A TCP proxy that misbehaves on command: slow, late, cut off, deaf, frozen, overloaded, lying.

It runs in a thread with a loop of its own and is controlled from the test's thread, at once or by a schedule. Bytes
pass unchanged unless a fault says otherwise, the Host header too, so signed requests survive. Faults with a count are
used up one by one; the others last until they are changed. ``python -m tests.support.faultproxy --help`` runs it as a
process.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.faultline import Line
from tests.support.faults import Answer, Counters, Faults
from tests.support.link import Link

Change = tuple[float, "Callable[[FaultProxy], None]"]
"""Seconds from now, and what to do to the proxy then."""


class FaultProxy:
    """``with FaultProxy("http://127.0.0.1:9000") as proxy: …`` and then talk to ``proxy.endpoint``.

    Proxies that are given the same ``link`` share its rate, in both directions.
    """

    def __init__(self, target: str, *, link: Link | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        url = urlsplit(target if "//" in target else f"//{target}")
        if url.hostname is None or url.port is None:
            raise ValueError(f"a target is http://host:port or host:port, not {target!r}")
        self.link = link or Link()
        self._target = (url.hostname, url.port)
        self._place = _hold_port(host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)
        self._stop = asyncio.Event()
        self._ending = threading.Event()
        self._followers: list[threading.Thread] = []
        self._lines: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Future[None] | None = None
        self._counters, self._faults = Counters(), Faults()
        self._faults.running.set()

    @property
    def port(self) -> int:
        return int(self._place.getsockname()[1])

    @property
    def endpoint(self) -> str:
        return f"http://{self._place.getsockname()[0]}:{self.port}"

    # What a test reads.

    @property
    def counters(self) -> Counters:
        """A copy of what happened so far."""
        return replace(self._counters)

    @property
    def connections(self) -> int:
        return self._counters.connections

    @property
    def up_bytes(self) -> int:
        return self._counters.up_bytes

    @property
    def down_bytes(self) -> int:
        return self._counters.down_bytes

    # Faults that last.

    @property
    def latency_s(self) -> float:
        """How much later everything arrives, each way."""
        return self._faults.latency_s

    @latency_s.setter
    def latency_s(self, latency_s: float) -> None:
        self._faults.latency_s = latency_s

    @property
    def black_hole(self) -> bool:
        """Connections, old and new, stay open and what comes is swallowed; whoever lost bytes by it is reset later."""
        return self._faults.black_hole

    @black_hole.setter
    def black_hole(self, on: bool) -> None:
        self._faults.black_hole = on

    def stall(self, on: bool = True) -> None:
        """As if the target were stopped (SIGSTOP): connections open, nothing moves; afterwards all of it goes on."""
        running = self._faults.running
        self._call(running.clear if on else running.set)

    def refuse(self, on: bool = True) -> None:
        """New connections are refused, as by a machine on which nothing listens; old ones stay (see ``cut_all``)."""
        self._await(self._close() if on else self._listen())

    def answer(
        self,
        status: int,
        count: int | None = 1,
        *,
        retry_after_s: int | None = None,
        method: str = "",
        path: str = "",
        contains: str = "",
        body: bytes | None = None,
    ) -> None:
        """Answer the next ``count`` requests (None: all) of this method and path so, instead of passing them on.

        A throttling storage: ``answer(503, 5, retry_after_s=1)``. Without ``body`` it is S3's SlowDown.
        """
        one = Answer(status, count, retry_after_s, method, path, contains)
        self._faults.answers.append(one if body is None else replace(one, body=body))

    def stop_answering(self, path: str = "") -> None:
        """Take all answers away, or those to paths that begin so."""
        self._faults.answers[:] = [one for one in self._faults.answers if not one.path.startswith(path)]

    # Faults that are used up.

    def lose_replies(self, count: int = 1) -> None:
        """The next requests reach the target whole, but their connections are reset when the replies come."""
        self._faults.lost_replies = count

    def cut_requests(self, *after_bytes: int) -> None:
        """Reset the next connections after so many bytes from the client, one connection for each number."""
        self._faults.up_cuts[:] = after_bytes

    def cut_replies(self, *after_bytes: int) -> None:
        """Close the next connections after so many bytes to the client, one connection for each number; those bytes
        arrive for certain, which a reset would not promise."""
        self._faults.down_cuts[:] = after_bytes

    def corrupt_requests(self, *at_bytes: int) -> None:
        """Invert the byte at this place of what the client sends, on one new connection for each number."""
        self._faults.up_flips[:] = at_bytes

    def corrupt_uploads(self, *at_bytes: int) -> None:
        """Invert the byte at this place of a PUT, its head included, in one PUT for each number."""
        self._faults.upload_flips[:] = at_bytes

    def corrupt_replies(self, *at_bytes: int) -> None:
        """Invert the byte at this place of what the target sends, on one new connection for each number."""
        self._faults.down_flips[:] = at_bytes

    def cut_all(self) -> None:
        """Reset every open connection."""
        self._call(self._reset_all)

    def schedule(self, changes: Iterable[Change]) -> None:
        """Make each change so many seconds from now; what is not due when the proxy ends is not made."""
        begun_s = time.monotonic()
        ordered = sorted(changes, key=lambda change: change[0])
        follower = threading.Thread(target=self._follow, args=(begun_s, ordered), name="faults", daemon=True)
        self._followers.append(follower)
        follower.start()

    def _follow(self, begun_s: float, changes: list[Change]) -> None:
        for after_s, change in changes:
            if self._ending.wait(max(0.0, begun_s + after_s - time.monotonic())):
                return
            change(self)

    # The machinery.

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._await(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        for follower in self._followers:
            follower.join()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._place.close()

    def _call(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        self._await(run())

    def _await(self, action: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._stop.wait()
        await self._close()
        lines = list(self._lines)
        self._reset_all()
        await asyncio.gather(*lines, return_exceptions=True)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = asyncio.ensure_future(self._accept(_listening_at(self._place)))

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await self._loop.sock_accept(listener)
                self._counters.connections += 1
                line = asyncio.ensure_future(self._carry(client))
                self._lines.add(line)
                line.add_done_callback(self._lines.discard)

    async def _carry(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        await Line(self._faults, self.link, self._counters).run(reader, writer, self._target)

    def _reset_all(self) -> None:
        for line in self._lines:
            line.cancel()


def _hold_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port, but does not listen: while nothing else does, the kernel refuses connections."""
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind((host, port))
    return place


def _listening_at(place: socket.socket) -> socket.socket:
    listener = _hold_port(*place.getsockname()[:2])
    listener.setblocking(False)
    listener.listen(1024)
    return listener


if __name__ == "__main__":
    from tests.support.faultcli import main

    sys.exit(main(sys.argv[1:]))
