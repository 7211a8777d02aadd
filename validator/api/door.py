"""Who may hold a connection: so many in all, so many from one source, and none that keeps us waiting.

A connection is *waiting* while no whole request of its peer is being answered: who owes the rest of a body, waits.
When there is no room for a newcomer, a waiting connection ends: one that never asked for anything before one that did,
of the source with most connections, the one heard from longest ago. So whoever only holds connections loses them, and
a peer that speaks is let in. A newcomer is turned away only where every connection that could make room is being
answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from common.merge.networks import address_of

MAX_CONNECTIONS = 768  # three for each of 256 seats, and below the customary 1,024 file descriptors
MAX_PER_SOURCE = 64  # a farm of miners may share one address, and each holds at most four
IPV6_SITE_BITS = 64  # what one customer is given at least


def source_of(host: str) -> str:
    """Whom an address belongs to: itself, or its /64 where one peer has as many addresses as it likes."""
    address = address_of(host)
    if address is None:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address), IPV6_SITE_BITS), strict=False))


@dataclass(eq=False)
class Connection:
    """One peer's connection, as the door sees it."""

    source: str
    end: Callable[[], None]
    spoke: bool = False
    busy: bool = False


class Door:
    """The connections of one server, in the order in which they were heard from. Pure; ``end`` is the only effect."""

    def __init__(self, most: int = MAX_CONNECTIONS, per_source: int = MAX_PER_SOURCE) -> None:
        self._most = most
        self._per_source = per_source
        self._held: dict[Connection, None] = {}
        self._sources: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, new: Connection) -> bool:
        """Let it in, ending a waiting one when there is no room; False when there is none to end."""
        if self._sources[new.source] >= self._per_source:
            room = self._end_one(new.source)
        else:
            room = len(self._held) < self._most or self._end_one(None)
        if room:
            self._held[new] = None
            self._sources[new.source] += 1
        return room

    def heard(self, connection: Connection, busy: bool) -> None:
        """Its peer sent something, or was answered."""
        if connection in self._held:
            del self._held[connection]
            self._held[connection] = None
            connection.busy = busy
            connection.spoke |= busy

    def leave(self, connection: Connection) -> None:
        """It is gone; nothing happens when it was not held."""
        if connection in self._held:
            del self._held[connection]
            self._sources[connection.source] -= 1
            if not self._sources[connection.source]:
                del self._sources[connection.source]

    def _end_one(self, source: str | None) -> bool:
        waiting = [held for held in self._held if not held.busy and source in (None, held.source)]
        if not waiting:
            return False
        victim = min(waiting, key=lambda held: (held.spoke, -self._sources[held.source]))
        self.leave(victim)
        victim.end()
        return True


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP, behind a door, with a deadline for a request's head and for a reply to be taken."""

    door: ClassVar[Door]
    head_s: ClassVar[float]
    _held: Connection
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Enter, or be cut off at once."""
        super().connection_made(transport)
        self._held = Connection(source_of(self.client[0] if self.client else ""), transport.abort)
        if self.door.enter(self._held):
            self._arm()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave; no timer outlives the connection."""
        self.door.leave(self._held)
        self._disarm()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The first byte of a head starts its deadline, the last one ends it. uvicorn stops its own timer here."""
        super().data_received(data)
        self._look()
        if not self._under_way():
            self._arm()

    def on_response_complete(self) -> None:
        """Wait for the next request: uvicorn's keep-alive timer runs from here."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """A peer that does not take its reply holds the connection as well."""
        super().pause_writing()
        self._arm()

    def resume_writing(self) -> None:
        """The reply moves on."""
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        under_way = self._under_way()
        self.door.heard(self._held, under_way and not self.cycle.more_body)
        if under_way and not self.flow.write_paused:
            self._disarm()

    def _under_way(self) -> bool:
        """Whether a head was read whose answer is not complete; the body may be on its way, and has its own time."""
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_s, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def guarded(behind: Door, within_s: float) -> type[GuardedProtocol]:
    """The protocol of one server: uvicorn makes its protocols itself and takes a class."""

    class Guarded(GuardedProtocol):
        door = behind
        head_s = within_s

    return Guarded
