"""A simulated miner's duties in the butterfly: what ``miner.reducer`` does, over the machine's links.

As the real reducer it reads of every accepted delta the header once a plan, and the byte range of each partition, so
many requests at a time, and hands means in piece by piece. The partitions that fill these requests are a gulp: its
round trips are waited for together and its bytes then move together, which takes as long or a little longer. Training
and submissions go on beside it and share the links. Invariant: a turn ends handed in, refused, out of time, or with its
process; what it has moved until then is booked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from common.codec.container import HEADER_BYTES
from common.errors import Rejected
from common.reductions import Copy, Reduction
from common.runlog.recompute import accepted_members
from common.spec import SCHEMA
from common.units import Sha256
from miner.duties import MOST_HELD_BYTES
from miner.means import PIECE_BYTES, PIECES, READS_AT_A_TIME
from validator.reducing import Place
from validator.simulator.events import Timer
from validator.simulator.links import Link, Transfer
from validator.simulator.records import SHARD

if TYPE_CHECKING:
    from validator.simulator.leader import Leader
    from validator.simulator.miner import Miner
    from validator.simulator.reduction import Wanted
    from validator.simulator.world import World

Duty = tuple[Place, Sha256]
"""A partition, and the hash of what is to be read of it."""


class Duties:
    """Those of one process."""

    def __init__(self, world: World, miner: Miner) -> None:
        self._world = world
        self._miner = miner
        self._turn: Turn | None = None
        self._known = Sha256("")
        """The plan whose headers were read."""

    def heard(self) -> None:
        """A heartbeat's reply came: begin what it asks for, unless something is under way."""
        leader = self._world.post.leader_of(self._miner)
        wanted = leader.reduction.view(self._miner.hotkey) if leader is not None and self._turn is None else None
        if wanted is not None:
            self._turn = Turn(self._world, self._miner, wanted, self._known == wanted.plan_sha256, self._ended)
            self._turn.begin()

    def end(self) -> None:
        """The process is gone."""
        if self._turn is not None:
            self._turn.cancel()

    def _ended(self) -> None:
        """The next reply tells whether more is due."""
        assert self._turn is not None
        if self._turn.knows_headers:
            self._known = self._turn.plan_sha256
        self._turn = None
        self._miner.later(self._world.spec.round.heartbeat_s, self.heard)


class Turn:
    """What one reply asked for, on its way."""

    def __init__(
        self, world: World, miner: Miner, wanted: Wanted, knows_headers: bool, then: Callable[[], None]
    ) -> None:
        self.knows_headers = knows_headers
        """Of the plan's deltas."""
        self._world = world
        self._miner = miner
        self._wanted = wanted
        self._then = then
        self._over = False
        self._left = self._first_duties(wanted)
        self._made: dict[Copy, bytes] = {}
        """The piece that is made or handed in now."""
        self._piece_until_s = 0.0
        self._transfer: tuple[Link, Transfer] | None = None
        self._timer: Timer | None = None

    @property
    def plan_sha256(self) -> Sha256:
        return self._wanted.plan_sha256

    def begin(self) -> None:
        self._timer = self._miner.later(self._wanted.asked.seconds_left, self._end)
        self._next_piece()

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

    def _first_duties(self, wanted: Wanted) -> list[Duty]:
        """As many as may be held, at least one."""
        first: list[Duty] = []
        held_bytes = 0
        for duty in wanted.asked.duties:
            size_bytes = self._world.ranges.mean_bytes(duty[0][1])
            if first and held_bytes + size_bytes > MOST_HELD_BYTES:
                break
            held_bytes += size_bytes
            first.append(duty)
        return first

    def _next_piece(self) -> None:
        """Until all that was begun with is handed in."""
        self._made = {}
        self._piece_until_s = self._world.queue.now_s + self._wanted.asked.seconds_left / PIECES
        if self._left:
            self._read()
        else:
            self._end()

    def _read(self) -> None:
        """The next gulp, until the piece is made."""
        members = accepted_members(self._wanted.plan, SHARD)
        requests = 0 if self.knows_headers else len(members)
        size_bytes = requests * HEADER_BYTES
        gulp: list[Duty] = []
        while self._left and (not gulp or requests < READS_AT_A_TIME):
            gulp.append(self._left.pop(0))
            requests += len(members)
            size_bytes += self._world.ranges.read_bytes(members, gulp[-1][0][1])
        waits_s = max(0.0, requests / READS_AT_A_TIME - 1) * 2 * self._world.storage.latency_s

        def asked(_: object) -> None:
            self._miner.later(waits_s, self._guarded(lambda: self._move(self._miner.machine.down, size_bytes, read)))

        def read() -> None:
            self.knows_headers = True
            lies = "wrong_mean" in self._miner.misdeeds.armed
            for (_, partition), inputs in gulp:
                copy, body = self._world.means.make(self._wanted.plan, partition, inputs, lies)
                self._made[copy] = body
            if self._left and not self._piece_is_made():
                self._read()
            else:
                self._hand_in(self._put)

        self._world.post.ask_storage(self._miner, lambda reply: None if self._over else asked(reply))

    def _piece_is_made(self) -> bool:
        made_bytes = sum(copy.mean.size_bytes for copy in self._made)
        return made_bytes >= PIECE_BYTES or self._world.queue.now_s >= self._piece_until_s

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
            self._hand_in(lambda _: self._next_piece())
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
