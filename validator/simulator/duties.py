"""A simulated miner's duties in the butterfly: what ``miner.reducer`` does, over the machine's links.

A hand-in's partitions are read one after the other, as the real reducer does: of every accepted delta the header and
the byte range, two requests of one round trip each. The round trips of a partition are waited for together and its
bytes then move together, which takes as long. Training and submissions go on beside it and share the links. Invariant:
a hand-in ends handed in, refused, out of time, or with its process; what it has moved until then is booked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from common.errors import Rejected
from common.reductions import Copy, Reduction
from common.runlog.recompute import accepted_members
from common.spec import SCHEMA
from common.units import Sha256
from miner.duties import MOST_HELD_BYTES
from validator.reducing import Place
from validator.simulator.events import Timer
from validator.simulator.links import Link, Transfer
from validator.simulator.records import SHARD

if TYPE_CHECKING:
    from validator.simulator.leader import Leader
    from validator.simulator.miner import Miner
    from validator.simulator.reduction import Wanted
    from validator.simulator.world import World

REQUESTS = 2
"""For each delta of each partition: header and range."""


class Duties:
    """Those of one process."""

    def __init__(self, world: World, miner: Miner) -> None:
        self._world = world
        self._miner = miner
        self._hand_in: HandIn | None = None

    def heard(self) -> None:
        """A heartbeat's reply came: begin what it asks for, unless something is under way."""
        leader = self._world.post.leader_of(self._miner)
        wanted = leader.reduction.view(self._miner.hotkey) if leader is not None and self._hand_in is None else None
        if wanted is not None:
            self._hand_in = HandIn(self._world, self._miner, wanted, self._ended)
            self._hand_in.begin()

    def end(self) -> None:
        """The process is gone."""
        if self._hand_in is not None:
            self._hand_in.cancel()

    def _ended(self) -> None:
        """The next reply tells whether more is due."""
        self._hand_in = None
        self._miner.later(self._world.spec.round.heartbeat_s, self.heard)


class HandIn:
    """The means of one hand-in on their way."""

    def __init__(self, world: World, miner: Miner, wanted: Wanted, then: Callable[[], None]) -> None:
        self._world = world
        self._miner = miner
        self._wanted = wanted
        self._then = then
        self._over = False
        self._left = self._first_duties(wanted)
        self._made: dict[Copy, bytes] = {}
        self._transfer: tuple[Link, Transfer] | None = None
        self._timer: Timer | None = None

    def begin(self) -> None:
        self._timer = self._miner.later(self._wanted.seconds_left, self._end)
        self._read()

    def cancel(self) -> None:
        """Nobody waits for it any more; what has moved of a transfer under way has moved."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transfer is not None:
            link, transfer = self._transfer
            moved = transfer.size_bytes - link.left_bytes(transfer)
            link.cancel(transfer)
            self._book(link, moved)

    def _first_duties(self, wanted: Wanted) -> list[tuple[Place, Sha256]]:
        """As many as may be held, at least one."""
        first: list[tuple[Place, Sha256]] = []
        held_bytes = 0
        for duty in wanted.duties:
            size_bytes = self._world.ranges.mean_bytes(duty[0][1])
            if first and held_bytes + size_bytes > MOST_HELD_BYTES:
                break
            held_bytes += size_bytes
            first.append(duty)
        return first

    def _read(self) -> None:
        """The next partition, until all are read."""
        if not self._left:
            self._hand_in(self._put)
            return
        (_, partition), inputs = self._left.pop(0)
        members = accepted_members(self._wanted.plan, SHARD)
        waits_s = (REQUESTS * len(members) - 1) * 2 * self._world.storage.latency_s
        size_bytes = self._world.ranges.read_bytes(members, partition)

        def asked(_: object) -> None:
            self._miner.later(waits_s, self._guarded(lambda: self._move(self._miner.machine.down, size_bytes, read)))

        def read() -> None:
            copy, body = self._world.means.make(self._wanted.plan, partition, inputs)
            self._made[copy] = body
            self._read()

        self._world.post.ask_storage(self._miner, lambda reply: None if self._over else asked(reply))

    def _hand_in(self, told: Callable[[list[Copy]], None]) -> None:
        """Say what was made; the leader tells what is still to be put."""
        word = self._word()

        def answered(reply: object) -> None:
            assert isinstance(reply, tuple)
            told(list(reply))

        def refused(refusal: object) -> None:
            assert isinstance(refusal, Rejected)
            self._end()

        def guarded(then: Callable[[object], None]) -> Callable[[object], None]:
            return lambda reply: None if self._over else then(reply)

        self._world.post.ask_leader(
            self._miner, lambda: self._leader().reduction.hand_in(word), guarded(answered), guarded(refused)
        )

    def _put(self, missing: list[Copy]) -> None:
        """One mean after the other; then the leader looks whether they are there."""
        if not missing:
            self._hand_in(lambda _: self._end())
            return
        copy, size_bytes = missing[0], self._world.ranges.mean_bytes(missing[0].partition)

        def stored(_: object) -> None:
            self._world.means.put(self._word(), copy, self._made[copy])
            self._put(missing[1:])

        def sent() -> None:
            self._world.post.ask_storage(self._miner, lambda reply: None if self._over else stored(reply))

        self._move(self._miner.machine.up, size_bytes, sent)

    def _word(self) -> Reduction:
        spec, wanted = self._world.spec, self._wanted
        return Reduction(SCHEMA, spec.run, self._miner.hotkey, wanted.plan.round, wanted.plan_sha256, tuple(self._made))

    def _leader(self) -> Leader:
        leader = self._world.post.leader_of(self._miner)
        assert leader is not None, "a request that nobody hears is not served"
        return leader

    def _move(self, link: Link, size_bytes: int, then: Callable[[], None]) -> None:
        def done() -> None:
            self._transfer = None
            self._book(link, size_bytes)
            if not self._over:
                then()

        self._transfer = link, link.send(float(size_bytes), done)

    def _book(self, link: Link, size_bytes: float) -> None:
        traffic, plan = self._world.traffic, self._wanted.plan
        note = traffic.note_read if link is self._miner.machine.down else traffic.note_put
        note(plan, self._miner.index, size_bytes)

    def _guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if self._over else call()

    def _end(self) -> None:
        """Handed in, refused, or out of time."""
        if not self._over:
            self.cancel()
            self._then()
