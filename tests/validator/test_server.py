"""The server's door: silent strangers lose their connections, and whoever asks is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Request

from common.errors import Rejected
from validator.api.door import Connection, Door, GuardedProtocol, source_of
from validator.api.security import read_body
from validator.api.server import Server, bind

STRANGER = "127.0.0.77"
NEVER_S = 3600.0
HEALTH = b"GET /v1/health HTTP/1.1\r\nhost: v\r\n\r\n"


def small_app() -> FastAPI:
    app = FastAPI()

    @app.get("/v1/health")
    async def health() -> dict[str, str]:
        return {"run": "demo"}

    @app.post("/v1/heartbeat")
    async def heartbeat() -> dict[str, str]:
        return {}

    return app


@contextlib.asynccontextmanager
async def serving(
    door: Door | None = None, head_s: float = NEVER_S, server: Server | None = None
) -> AsyncIterator[tuple[str, int]]:
    """A server on a free port."""
    sock = bind("127.0.0.1", 0)
    task = asyncio.create_task((server or Server(small_app(), door, head_s)).run_on(sock))
    try:
        yield sock.getsockname()
    finally:
        task.cancel()
        await asyncio.wait((task,))


class Peer:
    """A raw TCP connection from an address of ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, address: tuple[str, int], source: str = "127.0.0.1") -> Peer:
        return cls(*await asyncio.open_connection(*address, local_addr=(source, 0)))

    async def ask(self, request: bytes = HEALTH) -> tuple[int, bytes]:
        """Status and body of the answer to ``request``."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def ended(self) -> bool:
        """Wait until the server has closed the connection without a word."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


def test_two_hundred_silent_connections_of_a_stranger_do_not_stop_an_honest_request() -> None:
    async def go() -> None:
        door = Door()
        async with serving(door) as address:
            known = await Peer.at(address)
            assert (await known.ask())[0] == 200
            silent = [await Peer.at(address, STRANGER) for _ in range(200)]
            assert all(await asyncio.gather(*(peer.ended() for peer in silent[:136])))
            assert len(door) == 1 + 64
            honest = await Peer.at(address)
            assert await honest.ask() == (200, b'{"run":"demo"}')
            assert (await known.ask())[0] == 200

    asyncio.run(go())


def test_with_the_house_full_of_silence_the_oldest_stranger_makes_room() -> None:
    async def go() -> None:
        async with serving(Door(most=4)) as address:
            known = await Peer.at(address)
            assert (await known.ask())[0] == 200
            silent = [await Peer.at(address, f"127.0.0.{n}") for n in (71, 72, 73)]
            honest = await Peer.at(address)
            assert (await honest.ask())[0] == 200
            assert await silent[0].ended()
            assert (await known.ask())[0] == 200

    asyncio.run(go())


def test_requests_whose_bodies_never_come_make_room_too() -> None:
    """Else a dozen addresses that send heads alone would shut everybody out, and need no seat for it."""

    async def go() -> None:
        app, reading = small_app(), asyncio.Semaphore(0)

        @app.post("/v1/submissions")
        async def submit(request: Request) -> dict[str, str]:
            reading.release()
            with contextlib.suppress(Rejected):
                await read_body(request)
            return {}

        async with serving(server=Server(app, Door(most=4), NEVER_S)) as address:
            known = await Peer.at(address)
            assert (await known.ask())[0] == 200
            half = [await Peer.at(address, f"127.0.0.{n}") for n in (71, 72, 73)]
            for peer in half:
                peer.writer.write(b"POST /v1/submissions HTTP/1.1\r\nhost: v\r\ncontent-length: 10\r\n\r\nhalf")
                await reading.acquire()
            honest = await Peer.at(address)
            assert (await honest.ask())[0] == 200
            assert await half[0].ended()
            assert (await half[1].ask(b"a body"))[0] == 200
            assert (await known.ask())[0] == 200

    asyncio.run(go())


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nx: "])
def test_a_connection_without_a_whole_head_is_closed_at_its_deadline(sent: bytes) -> None:
    async def go() -> None:
        async with serving(head_s=0.05) as address:
            peer = await Peer.at(address, STRANGER)
            peer.writer.write(sent)
            assert await peer.ended()

    asyncio.run(go())


def test_a_body_that_drips_on_after_its_answer_is_cut_off() -> None:
    async def go() -> None:
        server = Server(small_app(), head_s=NEVER_S)
        async with serving(server=server) as address:
            peer = await Peer.at(address, STRANGER)
            request = b"GET /v1/health HTTP/1.1\r\nhost: v\r\ntransfer-encoding: chunked\r\n\r\n"
            assert (await peer.ask(request))[0] == 200
            protocol = server.config.http_protocol_class
            assert issubclass(protocol, GuardedProtocol)
            protocol.head_s = 0.05  # the first head had all the time it wanted; its body doesn't
            peer.writer.write(b"1\r\nx\r\n")
            assert await peer.ended()

    asyncio.run(go())


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed() -> None:
    async def go() -> None:
        async with serving() as address:
            peer = await Peer.at(address)
            lengths = b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
            status, body = await peer.ask(b"POST /v1/heartbeat HTTP/1.1\r\nhost: v\r\n" + lengths + b"0\r\n\r\n")
            assert status == 400
            assert b"bad_message" in body
            assert await peer.ended()

    asyncio.run(go())


def test_a_connection_that_is_being_answered_is_never_ended_for_a_newcomer() -> None:
    ended: list[str] = []
    door = Door(most=2, per_source=2)
    busy, idle, new = (Connection("a", lambda name=name: ended.append(name)) for name in ("busy", "idle", "new"))  # type: ignore[misc]
    assert door.enter(busy)
    assert door.enter(idle)
    door.heard(busy, True)
    assert door.enter(new)
    assert ended == ["idle"]
    door.heard(new, True)
    assert not door.enter(Connection("a", lambda: ended.append("late")))
    door.leave(busy)
    assert door.enter(Connection("b", lambda: ended.append("b")))
    assert ended == ["idle"]


def test_one_site_is_one_source() -> None:
    assert source_of("192.0.2.7") == source_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert source_of("64:ff9b::c000:207") == "192.0.2.7", "else all of IPv4 is one source behind a translator"
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1") != source_of("2001:db8:0:1::1")
    # Behind a translator all of IPv4 shares one /64: each address is a source of its own there, too.
    assert source_of("64:ff9b::192.0.2.7") == "192.0.2.7" != source_of("64:ff9b::192.0.2.8")
    assert source_of("") == ""


def test_a_request_that_is_cut_off_in_its_body_is_refused_and_no_error_of_ours() -> None:
    async def receive() -> dict[str, object]:
        return next(messages)

    messages = iter(({"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}))
    scope = {"type": "http", "method": "POST", "path": "/v1/submissions", "headers": [(b"content-length", b"8")]}
    with pytest.raises(Rejected, match="before the request was complete") as refused:
        asyncio.run(read_body(Request(scope, receive)))
    assert refused.value.code == "cut_off"
