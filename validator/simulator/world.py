"""Everything that is simulated, and the way from one part to another.

Invariant: the world decides nothing about rounds; it delivers messages, keeps time and counts. All randomness comes
from the seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from common.codec.params import F32
from common.identity import KeypairSigner
from common.merge.outer import OuterState
from common.model.init import init_vector
from common.model.shards import plan_shards
from common.runlog.entries import EntryData, PlanMember, RoundAborted, RoundFrozen
from common.runlog.recompute import MergeResult
from common.runlog.rules import CONTENT_FAILURES, MAX_ATTEMPTS
from common.spec import RunSpec
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256, Uid
from miner.policy import Order
from validator.membership import Seat
from validator.round.deadlines import Deadlines
from validator.round.facts import Phase
from validator.simulator.events import Queue
from validator.simulator.ghosts import Ghosts
from validator.simulator.leader import Leader
from validator.simulator.links import Link
from validator.simulator.machines import Machine, Mode, Power
from validator.simulator.messages import Answer, Request
from validator.simulator.miner import Miner
from validator.simulator.quadratic import Quadratic
from validator.simulator.records import BucketRecords, FastRecords, Records, fake_hotkey
from validator.simulator.settings import Settings, Sizes, make_run
from validator.simulator.storage import Storage
from validator.simulator.work import Fate, Ground, Lie, Offer, Session, make_all
from validator.submissions import Submission

MBIT = 1e6
Name = tuple[RoundId, Hotkey, Sha256]
_KEPT_ROUNDS = 4
_ORDERS: dict[Phase, Order] = {Phase.OPEN: "train", Phase.CLOSING: "submit"}


class World:
    """One simulation under way."""

    def __init__(
        self, settings: Settings, spec: RunSpec | None = None, bucket: bool = False, audit: bool = False
    ) -> None:
        """``spec``: in place of the preset's; ``bucket``: keep everything as the real bucket does, the spec's own
        model being what is trained; ``audit``: sum up every flow of every account."""
        self.settings = settings
        self.fast = not bucket
        self.queue = Queue()
        self.storage = Storage(settings.seed, settings.storage_latency_s)
        self.violations: list[str] = []
        """What must never be."""
        self.dice = random.Random(settings.seed ^ 0xB416)
        self._audit = audit
        owner, validator = KeypairSigner.from_uri("//Owner"), KeypairSigner.from_uri("//Validator")
        self.spec = spec or make_run(settings, owner.hotkey, validator.hotkey)
        signers = {s.hotkey: s for s in self._signers(bucket)}
        self.hotkeys: list[Hotkey] = list(signers) if bucket else [fake_hotkey(f"{i}") for i in range(settings.miners)]
        first, self.count = self._first(bucket)
        problem = Quadratic(self.count, settings.seed)
        self.sizes = Sizes.of(self.spec, settings.preset, self.count)
        self.ground = Ground(self.spec, problem, {Revision(0): first})
        self.outer = {Revision(0): OuterState.zero(self.count, self.spec.outer.momentum)}
        self.made: dict[Revision, MergeResult] = {}
        self.seats = {h: self._seat(i, h) for i, h in enumerate(self.hotkeys)}
        self.coldkeys = {hotkey: seat.coldkey for hotkey, seat in self.seats.items()}
        self.records: Records = (
            BucketRecords(self.spec, owner, validator, signers, self.queue)
            if bucket
            else FastRecords.begin(self.spec, validator.hotkey, self.queue, first)
        )
        self.leader = Leader(self)
        self.miners = [self._miner(i, hotkey) for i, hotkey in enumerate(self.hotkeys)]
        self.sessions: list[Session] = []
        self.losses: list[float] = [problem.loss(first)]
        self.phase_s: dict[str, float] = {}
        self.aborts: dict[str, int] = {}
        self.failed: list[RoundAborted] = []
        """Rounds that ended for what was delivered, oldest first."""
        self.on_phase: Callable[[RoundId, str], None] = lambda _round, _phase: None
        self.ghosts = Ghosts(self)
        self._offers: dict[Name, Offer] = {}
        self._members: dict[Revision, dict[Hotkey, list[PlanMember]]] = {}
        self._noticed: set[int] = set()
        self._phase: tuple[str, float] = ("gap", 0.0)

    # What is there at the beginning.

    def _signers(self, bucket: bool) -> list[KeypairSigner]:
        return [KeypairSigner.from_uri(f"//simulated/{i}") for i in range(self.settings.miners)] if bucket else []

    def _first(self, bucket: bool) -> tuple[F32, int]:
        if bucket:
            first = init_vector(self.spec.model, plan_shards(self.spec.model, 1)[0])
            return first, len(first)
        first = Quadratic(self.settings.dimension, self.settings.seed).start()
        return first, len(first)

    def _seat(self, index: int, hotkey: Hotkey) -> Seat:
        groups = self.settings.groups
        coldkey = Coldkey(fake_hotkey(f"group {index % groups}")) if groups else Coldkey(hotkey)
        return Seat(hotkey, coldkey, Uid(index), 1)

    def _miner(self, index: int, hotkey: Hotkey) -> Miner:
        settings = self.settings
        speed = settings.pace.tokens_per_s * self.dice.lognormvariate(0.0, settings.speed_spread)
        power = Power(speed, self.spec.inner.batch_size * self.spec.data.seq_len)
        most = settings.storage_mbit * MBIT
        up, down = (Link(self.queue, rate * MBIT, most) for rate in (settings.up_mbit, settings.down_mbit))
        miner = Miner(self, index, hotkey, Machine(self.queue, power, up, down))
        miner.tally.step_tokens = power.step_tokens
        return miner

    def start_from(self, other: World) -> None:
        """Begin with another world's first weights and hotkeys, before anything has happened."""
        first = other.ground.weights[Revision(0)]
        assert isinstance(self.records, FastRecords)
        assert len(first) == self.count
        self.ground.weights[Revision(0)] = first
        self.losses = [self.ground.problem.loss(first)]
        self.records = FastRecords.begin(self.spec, self.records.leader, self.queue, first)

    def new_session(self, miner: Miner) -> Session:
        """The work of a process that found no disk."""
        number = len(self.sessions) if self._audit else miner.life
        session = Session(
            self.ground, miner.index, number, miner.hotkey, miner.machine.power.step_tokens, audit=self._audit
        )
        if self._audit:
            self.sessions.append(session)
        return session

    # What the log says.

    @property
    def head(self) -> Revision:
        return self.records.state.head

    @property
    def next_round(self) -> RoundId:
        return self.records.state.next_round

    @property
    def open_round(self) -> RoundId | None:
        """The round that takes submissions, as a miner sees it."""
        opened = self.records.state.open_round
        return opened.round if opened is not None and opened.plan is None else None

    def order(self) -> tuple[Order | None, float | None]:
        """The leader's word on the open round, and in how many seconds it will freeze."""
        current = self.leader.current
        if not self.leader.listening or current is None:
            return None, None
        freeze_in_s = max(0.0, self.leader.freeze_at_s - self.queue.now_s)
        return _ORDERS.get(current.state.phase, "wait"), freeze_in_s

    @property
    def done(self) -> bool:
        """Whether as many rounds have ended as were asked for, or the time is over."""
        state, until_s = self.records.state, self.settings.until_s
        if until_s > 0 and self.queue.now_s >= until_s:
            return True
        return state.rounds_committed + state.rounds_aborted >= self.settings.rounds

    def named(self, revision: Revision, hotkey: Hotkey) -> Sequence[PlanMember]:
        """What the plan that made a revision says of a hotkey."""
        return self._members[revision].get(hotkey, ())

    def longest_s(self) -> float:
        """In which so many rounds must have ended, if machines are there and storage and leader are away no longer
        than the faults say."""
        away_s = sum(f.duration_s for f in self.settings.faults if f.duration_s < 1e9)
        starts_s = max((f.start for f in self.settings.faults if isinstance(f.start, float)), default=0.0)
        times, trace = Deadlines.of(self.spec), self.settings.trace
        absent_s = 0.0 if trace is None else trace.length_s  # for so long there may be no machine at all
        return (
            (absent_s * self.settings.rounds)
            + (self.settings.rounds + MAX_ATTEMPTS) * 2 * times.longest_s
            + 20 * away_s
            + starts_s
            + 10_000.0
        )

    # Messages.

    def ask_leader(self, miner: Miner, serve: Callable[[], object], then: Answer, refused: Answer) -> None:
        """A request to the leader, until it is answered."""
        Request(self, miner, serve, then, refused, to_leader=True).send()

    def ask_storage(self, miner: Miner, then: Answer) -> None:
        """A request to the storage, until it is answered."""
        Request(self, miner, self.storage.check, then, then, to_leader=False).send()

    def news(self) -> None:
        """The log has news: each miner hears of it with its next heartbeat."""
        for miner in self.miners:
            if miner.machine.online and miner.index not in self._noticed:
                self._noticed.add(miner.index)
                self._notice(miner)

    def _notice(self, miner: Miner) -> None:
        every_s = self.spec.round.heartbeat_s
        offset = (miner.index * 0.618_033_988_75) % 1.0
        beats = (self.queue.now_s / every_s - offset) // 1 + 1
        self.queue.at((beats + offset) * every_s + self.settings.latency_s, lambda: self._tell(miner))

    def _tell(self, miner: Miner) -> None:
        if miner.machine.online and not (miner.machine.reachable and self.leader.listening):
            self._notice(miner)
            return
        self._noticed.discard(miner.index)
        if miner.machine.online:
            miner.notice()

    # What the leader hears.

    def hear(self, miner: Miner) -> None:
        """One heartbeat, if it gets through."""
        if miner.machine.reachable and self.leader.listening:
            self.leader.members.hear(miner.hotkey, miner.beat(), self.queue.now_s)

    def hear_all(self, all_news: bool) -> None:
        """The heartbeats since the last look: of everybody, or of those who would seem silent otherwise."""
        members, now_s = self.leader.members, self.queue.now_s
        fresh_s = self.spec.round.member_timeout_s / 2
        for miner in self.miners:
            if miner.machine.reachable:
                member = members.get(miner.hotkey)
                if all_news or member is None or member.beat is None or now_s - member.heard_s > fresh_s:
                    members.hear(miner.hotkey, miner.beat(), now_s)

    def training_rate(self) -> float:
        """Tokens per second of all machines that train."""
        return sum(m.machine.power.tokens_per_s for m in self.miners if m.machine.mode is Mode.TRAIN)

    # Submissions.

    def register(self, offer: Offer) -> None:
        """Name a new submission, and know it by its name."""
        self.records.name(offer)
        self._offers[(offer.round, offer.session.hotkey, offer.sha256)] = offer

    def offer_of(self, submission: Submission) -> Offer:
        """The simulated side of a submission."""
        manifest = submission.manifest
        return self._offers[(manifest.round, manifest.signer, manifest.delta.sha256)]

    def values_of(self, member: PlanMember) -> F32:
        """What a member's delta decodes to."""
        return self._offers[(member.round, member.hotkey, member.delta.sha256)].sent

    def lie(self, miner: Miner) -> Lie | None:
        """What a dishonest miner is to say instead of its work."""
        fault = miner.misdeeds.lie
        if fault is None:
            return None
        if fault.kind in ("copy", "average"):
            return self._stolen(miner, 1 if fault.kind == "copy" else 2)
        factor = {"nan": float("nan"), "flip": -1.0}.get(fault.kind, fault.size)
        return lambda target: (target * factor).astype(target.dtype)

    def _stolen(self, miner: Miner, count: int) -> Lie | None:
        """The mean of the newest submissions of others on the same base."""
        assert miner.session is not None
        base = miner.session.held
        newest = {o.session.hotkey: o for o in self._offers.values() if o.base == base and o.plain}
        newest.pop(miner.hotkey, None)
        victims = list(newest.values())[:count]
        if len(victims) < count:
            return None
        make_all(victims)
        mean = sum(v.sent for v in victims) / count
        return lambda target: mean.astype(target.dtype)  # type: ignore[union-attr]

    # What the log does.

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        """An entry of the leader's, and what follows from it for everybody. Raises as ``Records.append``."""
        before = self.records.state
        try:
            self.records.append(data, reason, new_term)
        finally:  # an entry whose reply was lost is there all the same
            after = self.records.state
            if after.head != before.head:
                assert before.open_round is not None
                assert before.open_round.plan is not None
                self._committed(before.open_round.plan)
            if after.rounds_aborted != before.rounds_aborted and isinstance(data, RoundAborted):
                self.aborts[data.code] = self.aborts.get(data.code, 0) + 1
                self.failed += [data] if data.code in CONTENT_FAILURES else []

    def _committed(self, plan: RoundFrozen) -> None:
        """A plan became the head."""
        revision = self.head
        result = self.made.pop(revision)
        self.ground.weights[revision] = result.new_weights
        self.outer = {revision: result.new_outer_state}
        members: dict[Hotkey, list[PlanMember]] = {}
        for member in plan.members:
            members.setdefault(member.hotkey, []).append(member)
        self._members[revision] = members
        self.losses.append(self.ground.problem.loss(result.new_weights))
        self.ghosts.follow(revision)
        self._forget(plan.round)

    def phase_began(self, name: str) -> None:
        """Book the time of the phase before."""
        before, since_s = self._phase
        self.phase_s[before] = self.phase_s.get(before, 0.0) + self.queue.now_s - since_s
        self._phase = (name, self.queue.now_s)
        opened = self.records.state.open_round
        last = RoundId(self.records.state.next_round - 1)
        self.on_phase(opened.round if opened is not None else last, name)

    def note_fate(self, fate: Fate) -> None:
        """No step may be merged twice."""
        if fate.member is None or fate.member.decision != "accepted":
            return
        offer = fate.offer
        spans = offer.session.merged
        if any(first < offer.mark and offer.first < mark for first, mark in spans):
            self.violations.append(f"steps {offer.first} to {offer.mark} of {offer.session.hotkey} are merged twice")
        offer.session.merged = [*spans[-4:], (offer.first, offer.mark)]

    def _forget(self, round_id: RoundId) -> None:
        """What nobody can ask for any more."""
        oldest = RoundId(round_id - _KEPT_ROUNDS)
        base = self.records.state.head_node.round
        if base is not None and base < oldest:
            return
        for name in [name for name in self._offers if name[0] < oldest]:
            del self._offers[name]
        held = [m.session.held for m in self.miners if m.session is not None]
        held += self.ghosts.held()
        least = min(held, default=self.head)
        for revision in [r for r in self.ground.weights if r < min(least, self.head - 1)]:
            del self.ground.weights[revision]
            self._members.pop(revision, None)
        self.records.forget(oldest)

    # Faults.

    def kill(self, miner: Miner, kind: str) -> None:
        """The process dies, and is started again with its disk when the fault is over."""
        fault = miner.misdeeds.take(kind)
        miner.die(disk=True)
        if fault is not None and math.isfinite(fault.duration_s):
            self.queue.after(fault.duration_s, miner.start)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """In so many seconds, whatever happens to whom."""
        self.queue.after(delay_s, call)

    def resume(self) -> None:
        """Somebody has looked at a paused run."""
        self.leader.resume(self.records.resume())

    def lose_log_reply(self) -> None:
        """The reply to the leader's next append is lost: its own bytes lie there all the same."""
        if isinstance(self.records, BucketRecords):
            self.records.store.lose_next_reply(key_part="/log/")
