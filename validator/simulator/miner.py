"""One simulated miner: its processes, one after the other, and what they do about rounds.

Training never stops for the merge. A drip is sent every ``drip_s`` while the round is open, a final when the leader
closes it; the revision is followed as soon as its update is there. Invariant: whatever happens to the machine, every
step that was taken ends in exactly one place of the tally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from common.clock import ServerTime
from common.units import Hotkey, Revision, RoundId
from common.wire import Heartbeat, Phase
from validator.simulator.conduct import Conduct
from validator.simulator.duties import Duties
from validator.simulator.events import Timer
from validator.simulator.machines import Machine, Mode
from validator.simulator.misdeeds import Misdeeds
from validator.simulator.tally import Tally
from validator.simulator.work import Fate, Offer, Session

if TYPE_CHECKING:
    from validator.simulator.world import World

STEP_SLACK = 1e-9
"""Steps: what is nearer to a whole one than rounding can tell is one."""


@dataclass(slots=True)
class _Counters:
    tokens: int
    training_s: float
    online_s: float


@dataclass(slots=True)
class Beat:
    """What ``common.wire.Heartbeat`` says, without a parser's cost."""

    session: str
    seq: int
    phase: Phase
    round: int | None
    round_tokens: int
    round_steps: int
    ahead_tokens: int
    tokens_per_s: float
    counters: _Counters
    upload: object | None


class Miner:
    """A hotkey, its machine, and the process on it, if there is one."""

    def __init__(self, world: World, index: int, hotkey: Hotkey, machine: Machine) -> None:
        self.index = index
        self.hotkey = hotkey
        self.machine = machine
        self.tally = Tally()
        self.misdeeds = Misdeeds()
        self.session: Session | None = None
        self.fetching = False
        """A newer revision is on its way."""
        self._world = world
        self._life = 0
        self._began_s = 0.0
        self._began_steps = 0
        self._seq = 0
        self._conduct: Conduct | None = None
        self._duties = Duties(world, self)
        self._frozen: list[Callable[[], None]] = []
        self.clock_off_s = 0.0
        """How far its wall clock is ahead."""
        self.time = ServerTime(self)
        self.place = 0
        """Number of the validator that it talks to."""

    # Its clock, which is its own (``common.clock.Clock``).

    def monotonic_s(self) -> float:
        return self._world.queue.now_s

    def wall_ns(self) -> int:
        return self._world.queue.wall_ns() + round(self.clock_off_s * 1e9)

    # Life.

    def start(self) -> None:
        """A machine came up, or a process is started again."""
        if self.machine.online:
            return
        self._life += 1
        self._began_s = self._world.queue.now_s
        self.time = ServerTime(self)
        self.fetching = False
        self._conduct = Conduct(self._world, self)
        self._duties = Duties(self._world, self)
        self.machine.enter(Mode.BOOT)
        self.later(self._world.settings.boot_s, self._sync)

    def die(self, disk: bool) -> None:
        """The process is gone at once; with its ``disk`` it can go on from its newest submission."""
        if not self.machine.online:
            return
        self._world.post.hear(self)
        steps, session = self.steps(), self.session
        self.tally.partial_tokens += self._partial_tokens()
        self._end()
        self.machine.set_trained_s(0.0)
        if session is None:
            return
        self.tally.trained_steps += steps - self._began_steps
        if disk:
            kept = session.lose_since_last_mark()
            self.tally.lose("death", steps - kept)
            self._began_steps = kept
            self.machine.set_trained_s(kept * self.machine.power.step_s)
        else:
            self.tally.lose("death", steps - session.newest_there())
            self.session = None
            self._world.ghosts.bury(session, self.tally)

    def drain(self) -> None:
        """SIGTERM: hand in what there is, then leave."""
        if self._conduct is not None and self.machine.mode is Mode.TRAIN and not self._conduct.draining:
            self._conduct.drain()

    def stop(self) -> None:
        """SIGSTOP."""
        if self.machine.online:
            self._world.post.hear(self)
            self.machine.stop()

    def go_on(self) -> None:
        """SIGCONT: everything that was due meanwhile happens now."""
        self.machine.go_on()
        waiting, self._frozen = self._frozen, []
        for call in waiting:
            self._world.queue.after(0.0, call)

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call in so many seconds, unless this process has died by then; while it is stopped the call waits."""
        return self.at(self._world.queue.now_s + delay_s, call)

    def at(self, at_s: float, call: Callable[[], None]) -> Timer:
        """The same, at a moment."""
        life = self._life

        def due() -> None:
            if life != self._life or not self.machine.online:
                return
            if self.machine.mode is Mode.STOPPED:
                self._frozen.append(due)
            else:
                call()

        return self._world.queue.at(at_s, due)

    def steps(self) -> int:
        """Inner steps of this session so far."""
        return int(self.machine.trained_s() / self.machine.power.step_s + STEP_SLACK)

    @property
    def life(self) -> int:
        """Number of its process."""
        return self._life

    def _partial_tokens(self) -> float:
        taken_s = self.steps() * self.machine.power.step_s
        return max(0.0, self.machine.trained_s() - taken_s) * self.machine.power.tokens_per_s

    def _end(self) -> None:
        self._life += 1
        self.machine.go_on()
        self.machine.enter(Mode.OFF)
        self._duties.end()
        self.machine.up.cancel_all()
        self.machine.down.cancel_all()
        self._frozen.clear()
        if self._conduct is not None:
            self._conduct.end()
        self._conduct = None

    # Getting to the head.

    def _sync(self) -> None:
        self.machine.enter(Mode.SYNC)
        self._fetch(None, self._arrived)

    def _arrived(self, head: Revision) -> None:
        if head < self._world.head:  # what was committed meanwhile is fetched too, before training begins
            self._fetch(head, self._arrived)
        else:
            self._begin(head)

    def _fetch(self, held: Revision | None, then: Callable[[Revision], None]) -> None:
        """Download what leads from a revision, or from nothing, to the head."""
        head = self._world.head
        size_bytes = self._world.sizes.to_head(held, head)

        def begin(_: object) -> None:
            self.machine.down.send(size_bytes, lambda: then(head))

        self._world.post.ask_storage(self, begin)

    def _begin(self, head: Revision) -> None:
        """Train on the head: with the disk's work, or afresh."""
        session = self.session
        if session is None:
            session = self.session = self._world.new_session(self)
            session.begin(head)
            self._began_steps = 0
        self.machine.set_trained_s(session.anchor_steps * self.machine.power.step_s)
        self.machine.enter(Mode.TRAIN)
        self._follow(head)
        assert self._conduct is not None
        self._conduct.begin()
        self._duties.heard()

    # Following the log.

    def notice(self) -> None:
        """A heartbeat's reply told of news, or something that was under way has ended."""
        if self._conduct is not None:
            self._conduct.look()
        if self.session is not None and self.machine.mode in (Mode.TRAIN, Mode.IDLE):
            self._duties.heard()

    def delivered(self, refused: bool) -> None:
        """The upload under way has come to its end."""
        if self._conduct is not None:
            self._conduct.delivered(refused)

    def fetch_head(self) -> None:
        """Get the head beside the training."""
        assert self.session is not None
        self.fetching = True
        self._fetch(self.session.held, self._fetched)

    def _fetched(self, head: Revision) -> None:
        self.fetching = False
        self._follow(head)
        self.notice()

    def _follow(self, head: Revision) -> None:
        """Go through the plans up to ``head``."""
        session = self.session
        assert session is not None
        for number in range(session.held + 1, head + 1):
            revision = Revision(number)
            for fate in session.follow(revision, self._world.named(revision, self.hotkey), self.steps()):
                self.settle(fate)

    def settle(self, fate: Fate) -> None:
        """Book what became of a submission."""
        self._world.note_fate(fate)
        self.tally.settle(fate, self._world.spec)

    def offer(self, round_id: RoundId, final: bool) -> Offer:
        """A submission at this moment's mark."""
        session, world = self.session, self._world
        assert session is not None
        sizes = world.sizes.delta(session.held)
        offer = session.offer(round_id, self.steps(), final, world.queue.now_s, sizes, world.lie(self))
        offer.plain = offer.lie is None
        world.register(offer)
        return offer

    def close_books(self) -> None:
        """At the end: what plans have said already is booked, the rest is not decided."""
        session = self.session
        if session is None:
            return
        steps = self.steps() if self.machine.online else session.anchor_steps
        if self.machine.online:
            self.tally.trained_steps += steps - self._began_steps
            self.tally.under_way += self._partial_tokens()
        for number in range(session.held + 1, self._world.head + 1):
            revision = Revision(number)
            for fate in session.follow(revision, self._world.named(revision, self.hotkey), steps):
                self.settle(fate)
        self.tally.unfinished += session.undecided_tokens(steps)

    # What the leader hears.

    def beat(self) -> Heartbeat:
        """The heartbeat of this moment."""
        self._seq += 1
        session, steps, step_tokens = self.session, self.steps(), self.machine.power.step_tokens
        settled = session.settled if session is not None else steps
        conduct = self._conduct
        final = conduct.final() if conduct is not None else None
        end = steps if final is None else final.mark
        now_s = self._world.queue.now_s
        said = Beat(
            session=f"{self.index:08x}{self._life:08x}",
            seq=self._seq,
            phase=Phase.DRAINING if conduct is not None and conduct.draining else _PHASE[self.machine.mode],
            round=conduct.round if conduct is not None else None,
            round_tokens=(end - settled) * step_tokens,
            round_steps=end - settled,
            ahead_tokens=(steps - end) * step_tokens,
            tokens_per_s=self.machine.power.tokens_per_s,
            counters=_Counters(
                tokens=max(0, steps - self._began_steps) * step_tokens,
                training_s=max(0, steps - self._began_steps) * self.machine.power.step_s,
                online_s=now_s - self._began_s,
            ),
            upload=True if conduct is not None and conduct.errand is not None else None,
        )
        return cast(Heartbeat, said)


_PHASE = {
    Mode.OFF: Phase.STARTING,
    Mode.BOOT: Phase.STARTING,
    Mode.SYNC: Phase.SYNCING,
    Mode.TRAIN: Phase.TRAINING,
    Mode.IDLE: Phase.WAITING,
    Mode.STOPPED: Phase.TRAINING,
}
