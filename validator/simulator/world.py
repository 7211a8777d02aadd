"""Everything that is simulated, and the way from one part to another.

Invariant: the world decides nothing about rounds; it delivers messages, keeps time and counts. All randomness comes
from the seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from common.codec.params import F32
from common.defaults import BUTTERFLY
from common.errors import OperatorError
from common.identity import KeypairSigner
from common.merge.outer import OuterState
from common.model.init import init_vector
from common.model.shards import plan_shards
from common.runlog.entries import EntryData, PlanMember, RoundAborted, RoundFrozen
from common.runlog.recompute import MergeResult
from common.runlog.rules import CONTENT_FAILURES, MAX_ATTEMPTS
from common.runlog.state import RunState
from common.spec import RunSpec
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256, Uid
from validator.membership import Seat
from validator.round.deadlines import Deadlines
from validator.simulator.bucket import BucketRecords
from validator.simulator.events import Queue
from validator.simulator.ghosts import Ghosts
from validator.simulator.leader import Leader
from validator.simulator.links import Link
from validator.simulator.machines import Machine, Power
from validator.simulator.means import means_of
from validator.simulator.miner import Miner
from validator.simulator.places import asn_of
from validator.simulator.post import Post
from validator.simulator.quadratic import Quadratic
from validator.simulator.records import FastRecords, Records, fake_hotkey
from validator.simulator.roster import Roster, validator_keys
from validator.simulator.scenario import KINDS
from validator.simulator.settings import Settings, Sizes, make_run
from validator.simulator.storage import Storage
from validator.simulator.traffic import Ranges, Traffic
from validator.simulator.work import Fate, Ground, Lie, Offer, Session, make_all
from validator.submissions import Submission

MBIT = 1e6
Name = tuple[RoundId, Hotkey, Sha256]
_KEPT_ROUNDS = 4


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
        owner, validators = KeypairSigner.from_uri("//Owner"), validator_keys(settings.validators)
        self.spec = spec or make_run(settings, owner.hotkey, [signer.hotkey for signer in validators])
        if self.spec.reduce.kind != BUTTERFLY and any(KINDS[fault.kind].owners for fault in settings.faults):
            raise OperatorError("wrong_mean means something only where miners reduce: that needs --reduce butterfly")
        signers = {s.hotkey: s for s in self._signers(bucket)}
        self.hotkeys: list[Hotkey] = list(signers) if bucket else [fake_hotkey(f"{i}") for i in range(settings.miners)]
        first, self.count = self._first(bucket)
        problem = Quadratic(self.count, settings.seed)
        self.sizes = Sizes.of(self.spec, settings.preset, self.count)
        self.ground = Ground(self.spec, problem, {Revision(0): first})
        self.outer = {Revision(0): OuterState.zero(self.count, self.spec.outer.momentum)}
        self.made: dict[tuple[Revision, Sha256], MergeResult] = {}
        """By the revision's number and hash: two who lead may make two of one number."""
        self.chain_down = False
        self.turned_s = 0.0
        """When the log's newest turn was written: see ``RunState.turned_seq``."""
        self.seats = {h: self._seat(i, h) for i, h in enumerate(self.hotkeys)}
        self.coldkeys = {hotkey: seat.coldkey for hotkey, seat in self.seats.items()}
        self.records: Records = (
            BucketRecords(self.spec, owner, validators[0], signers, self.queue)
            if bucket
            else FastRecords.begin(self.spec, validators[0].hotkey, self.queue, first)
        )
        self.ranges, self.traffic = Ranges(self.spec, self.sizes.values), Traffic()
        self.means = means_of(self.records, self.sizes.values, self.count)
        self.roster = Roster(self, owner, validators)
        self.validators = [Leader(self, number) for number in range(len(validators))]
        self.post = Post(self)
        self.miners = [self._miner(i, hotkey) for i, hotkey in enumerate(self.hotkeys)]
        self.sessions: list[Session] = []
        self.losses: list[float] = [problem.loss(first)]
        self.phase_s: dict[str, float] = {}
        self.timeline: list[tuple[float, RoundId, str]] = []
        """When phases began."""
        self.aborts: dict[str, int] = {}
        self.failed: list[RoundAborted] = []
        """Rounds that ended for what was delivered, oldest first."""
        self.proven: dict[Hotkey, float] = {}
        """Tokens per second, as the newest leader's report has them."""
        self.bars: dict[Hotkey, RoundId] = {}
        """Before which round who reduces nothing, as the leaders' reports have it."""
        self.on_phase: Callable[[RoundId, str], None] = lambda _round, _phase: None
        self.ghosts = Ghosts(self)
        self._offers: dict[Name, Offer] = {}
        self._members: dict[Revision, dict[Hotkey, list[PlanMember]]] = {}
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

    @property
    def leader(self) -> Leader:
        """Whom the log names as the leader; before the first one the validator that begins."""
        return self.validators[self.roster.number_of(self.records.state.leader)]

    @property
    def idle(self) -> bool:
        """Whether no round is open, and nobody who leads has one in hand."""
        return self.records.state.open_round is None and self.leader.current is None

    def asn_of(self, host: str) -> int | None:
        """What the leaders' table says of an address."""
        return asn_of(self.settings, host)

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

    def append(self, records: Records, data: EntryData, reason: str) -> None:
        """An entry of a leader's, and what follows from it for everybody. Raises as ``Records.append``."""
        before = self.records.state
        try:
            records.append(data, reason)
        finally:  # an entry whose reply was lost is there all the same
            if records is self.records:
                self._took(before, data, records.state)
            else:
                self.observe()

    def observe(self) -> None:
        """What validators have written since the last look."""
        if len(self.validators) > 1:
            for news in self.roster.log.news():
                self._took(news.before, news.data, news.after)

    def _took(self, before: RunState, data: EntryData | None, after: RunState) -> None:
        if after.turned_seq != before.turned_seq:
            self.turned_s = self.queue.now_s
        if after.head != before.head:
            assert before.open_round is not None
            assert before.open_round.plan is not None
            self._committed(before.open_round.plan, after.head)
        if after.rounds_aborted != before.rounds_aborted and isinstance(data, RoundAborted):
            self.aborts[data.code] = self.aborts.get(data.code, 0) + 1
            self.failed += [data] if data.code in CONTENT_FAILURES else []

    def _committed(self, plan: RoundFrozen, revision: Revision) -> None:
        """A plan became the head."""
        node = self.records.state.revisions[revision]
        result = self.made[(revision, node.shards[0].weights_sha256)]
        self.made = {name: made for name, made in self.made.items() if name[0] > revision}
        self.ground.weights[revision] = result.new_weights
        self.outer[revision] = result.new_outer_state
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
        round_id = opened.round if opened is not None else last
        self.timeline.append((self.queue.now_s, round_id, name))
        self.on_phase(round_id, name)

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
        in_hand = [v.current.state for v in self.validators if v.current is not None]
        oldest = min([RoundId(round_id - _KEPT_ROUNDS), *(RoundId(state.round - 1) for state in in_hand)])
        base = self.records.state.head_node.round
        if base is not None and base < oldest:
            return
        for name in [name for name in self._offers if name[0] < oldest]:
            del self._offers[name]
        held = [m.session.held for m in self.miners if m.session is not None]
        held += self.ghosts.held() + [state.base_revision for state in in_hand]
        least = min(held, default=self.head)
        for revision in [r for r in self.ground.weights if r < min(least, self.head - 1)]:
            del self.ground.weights[revision]
            self._members.pop(revision, None)
            self.outer.pop(revision, None)
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
        if self.leader.answers:
            self.leader.resume(self.records.resume())
        else:
            self.later(self.settings.pause_s * 100, self.resume)

    def lose_log_reply(self) -> None:
        """The reply to the leader's next append is lost: its own bytes lie there all the same."""
        if isinstance(self.records, BucketRecords):
            self.records.store.lose_next_reply(key_part="/log/")
