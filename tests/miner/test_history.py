"""Random histories of one miner: what it trained is merged, or kept, or named; and every step's tokens count once.

The real ledger on a real disk, the real training work with a trainer of a few values, and a world that plans whatever
the protocol allows: drips and finals, deferred, late and adopted ones, rounds aborted, plans read late, kills at any
point, a trainer that goes back. The law, to the rounding of float32::

    Σ trained = Σ flows + residual + pending + (x − base) + lost

Lost is only what a kill found in no submission, or what the trainer gave up and no plan settles afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.errors import Rejected
from common.merge.flows import Flows
from common.runlog.entries import PlanMember
from common.units import Revision, RoundId
from miner.delta import Outstanding, build
from miner.ledger import MAX_LIVE, Ledger
from miner.settle import OwnPlan, Settlement
from miner.trainer import Trainer
from miner.work import RoundWork, Stream, Work
from tests.miner.working import COUNT, SIGNER, SPEC, TOKENS, FewValues, NoBatches, base_of, folder, place

T = TypeVar("T")
DECISIONS = st.sampled_from(["accepted", "accepted", "rejected", "too_late", "nothing", "unknown"])
LATE = st.sampled_from(["accepted", "rejected", "too_late"])
KILLED = st.sampled_from(["no", "no", "before the write", "after the write"])
Step = tuple[int, int]
"""A step's identity: round of its stream, and its first sample."""


def wait(action: Awaitable[T]) -> T:
    async def once() -> T:
        return await action

    return asyncio.run(once())


class Miner(RuleBasedStateMachine):
    """One miner, its disk, and the plans about it."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.trained = np.zeros(COUNT)
        self.gone = np.zeros(COUNT)
        """What left the account, by any name, and what was lost and not settled after all."""
        self.steps: set[Step] = set()
        self.claimed: list[Step] = []
        """Steps of the submissions that plans accepted."""
        self.unclaimed: set[Step] = set()
        """Steps whose work was lost, or whose submission was not taken: their mass is in the residual."""
        self.round, self.head = RoundId(0), Revision(0)
        self.plans: list[OwnPlan] = []
        """Committed, and not read by the miner."""
        self.deferred: Outstanding | None = None
        """By the newest committed plan."""
        self.there: set[str] = set()
        """Deltas whose bytes the leader has."""
        self.line: list[Outstanding] = []
        """What the leader has heard of on the head, in order."""
        self.unsaved: set[Step] = set()
        """Steps since the last submission: all that a kill may cost."""
        self.counter = 0
        self.start()
        wait(self.ledger.adopt(self.head))
        self.begin()

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    def start(self) -> None:
        self.ledger = Ledger.open(SPEC, folder(self.path), COUNT)
        self.work = RoundWork(self.make_trainer(), SPEC.inner)

    def make_trainer(self) -> Trainer:
        self.trainer = FewValues()
        self.trainer._steps = self.counter  # other noise than before
        return self.trainer  # type: ignore[return-value]

    def begin(self) -> None:
        assert self.ledger.settled == self.base()
        stream = Stream(self.round, self.head, NoBatches())
        self.work.begin(base_of(self.base()), stream, self.ledger.work)
        # another process draws on where no step can be confused with one that was lost
        self.work._next_sample = 2 * self.counter

    def base(self) -> Revision:
        return self.plans[0].base_revision if self.plans else self.head

    def marked(self) -> Work:
        return self.work.mark().work

    @rule(count=st.integers(1, 3))
    def train(self, count: int) -> None:
        before = self.trainer.weights().astype(np.float64)
        known = steps_of(self.marked())
        for _ in range(count):
            self.work.step()
            self.counter += 1
        self.trained += self.trainer.weights() - before
        self.steps |= steps_of(self.marked())
        self.unsaved |= steps_of(self.marked()) - known

    @rule(final=st.booleans())
    def submit(self, final: bool) -> None:
        """For the open round, if its base is the one trained on."""
        if self.plans or len(self.ledger.live) == MAX_LIVE:
            return
        try:
            one = build(SPEC, self.ledger.account, self.work.mark(), self.round, final, SIGNER)
        except Rejected:
            return
        assert wait(self.ledger.hand_in(one))
        self.line.append(one)
        self.unsaved = set()

    @precondition(lambda self: self.ledger.live and not self.plans)
    @rule(which=st.integers(0, 3), reply_lost=st.booleans())
    def arrive(self, which: int, reply_lost: bool) -> None:
        """The bytes of one are there; perhaps the miner never hears of it."""
        one = self.ledger.live[-1 - which % len(self.ledger.live)]
        self.there.add(one.sent.manifest.delta.sha256)
        if not reply_lost:
            wait(self.ledger.confirm(one.sent))

    @rule()
    def abort(self) -> None:
        self.next_round()

    @rule(
        drips=st.integers(0, 2),
        which=st.sampled_from([None, 0, 1, 2]),
        back=st.booleans(),
        decision=DECISIONS,
        late=LATE,
        overtaken=st.booleans(),
        killed=KILLED,
    )
    def whole_round(
        self, drips: int, which: int | None, back: bool, decision: str, late: str, overtaken: bool, killed: str
    ) -> None:
        """Drips, a final one, some of them there, perhaps a return to the base, a plan, and the miner reads it."""
        for kind in (*[False] * drips, True):
            self.train(1)
            self.submit(kind)
        if self.ledger.live and which is not None and not self.plans:
            self.arrive(which, reply_lost=which == 1)
        if back:
            self.go_back()
        self.train(2)
        self.commit(decision, late)
        if overtaken and self.ledger.live:  # the newest arrived while the plan was being made
            wait(self.ledger.confirm(self.ledger.live[-1].sent))
        self.read(killed)

    @rule(decision=DECISIONS, late=LATE)
    def commit(self, decision: str, late: str) -> None:
        """A plan becomes a revision: of the miner's line the newest complete one, else the newest as deferred."""
        members = []
        if self.deferred is not None:
            arrived = self.deferred.sent.manifest.delta.sha256 in self.there
            word = late if arrived else "too_late"
            members.append(self.named(self.deferred, word))
        chosen, self.deferred, self.line = self.choose(), None, []
        if chosen is not None and decision == "unknown":
            members.append(place(chosen.sent, delta=chosen.sent.manifest.trace_root))
        elif chosen is not None and decision != "nothing":
            if chosen.sent.manifest.delta.sha256 in self.there:
                members.append(self.named(chosen, decision))
            else:
                members.append(place(chosen.sent, "deferred"))
                self.deferred = chosen
        self.head = Revision(self.head + 1)
        self.plans.append(OwnPlan(self.head, Revision(self.head - 1), tuple(members)))
        self.next_round()

    def named(self, one: Outstanding, word: str) -> PlanMember:
        if word == "accepted":
            assert one.sent.manifest.tokens == TOKENS * one.work.steps
            self.claimed += steps_of(one.work)
            return place(one.sent)
        self.unclaimed |= steps_of(one.work)
        return place(one.sent, "rejected", "" if word == "rejected" else word)

    def choose(self) -> Outstanding | None:
        complete = [one for one in self.line if one.sent.manifest.delta.sha256 in self.there]
        mine = [one for one in self.line if one.sent.round == self.round]
        return (complete or mine or [None])[-1]

    def next_round(self) -> None:
        self.round = RoundId(self.round + 1)
        self.work.restream(Stream(self.round, self.head, NoBatches()))
        self.work._next_sample = 2 * self.counter

    @precondition(lambda self: self.plans)
    @rule(killed=KILLED)
    def read(self, killed: str) -> None:
        """The miner catches up with all plans at once."""
        outcome = self.ledger.outcome(self.plans)
        mark = outcome.mark.work if outcome.mark else None
        revived = mark is not None and mark.life != self.work.progress.life
        optimizer = self.work.rebase(base_of(self.head), mark)
        if killed == "before the write":
            return self.restart(moved_on=outcome)
        wait(self.ledger.settle(self.head, outcome, optimizer))
        self.plans = []
        self.book(outcome)
        if mark is not None and revived:
            self.gone -= mark.moved
        if killed == "after the write":
            self.restart()

    def book(self, outcome: Settlement) -> None:
        assert all("does not hold" in alarm for alarm in outcome.alarms)
        for flows in outcome.flows:
            self.gone += total(flows)

    @rule()
    def kill(self) -> None:
        self.restart()

    def restart(self, moved_on: Settlement | None = None) -> None:
        """What no submission held is lost."""
        x = self.marked()
        lost = x.moved.astype(np.float64)
        if moved_on is not None and moved_on.mark is not None:  # the thread had rebased, the disk has not
            lost += self.in_life(moved_on.mark.work)
            mine = x.trace if moved_on.mark.work.life != x.life else (*moved_on.mark.work.trace, *x.trace)
        else:
            mine = x.trace
        self.start()
        self.begin()
        found = self.marked()
        self.gone += lost - found.moved
        lost_steps = {(s.round, s.sample_start) for s in mine} - steps_of(found)
        assert lost_steps <= self.unsaved, "a kill costs at most what was trained since the last submission"
        self.unclaimed |= lost_steps

    def in_life(self, work: Work) -> np.ndarray:  # type: ignore[type-arg]
        return work.moved.astype(np.float64) if work.life == self.work.progress.life else np.zeros(COUNT)

    @rule()
    def go_back(self) -> None:
        """The trainer gives its work up. What was handed in of it may still be merged."""
        x = self.marked()
        self.work.give_up("the test says so", self.work.mark())
        self.gone += x.moved
        self.unclaimed |= steps_of(x)

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        account = self.ledger.account
        held = account.residual.astype(np.float64) + self.marked().moved
        if account.pending is not None:
            held += account.pending.target
        assert np.allclose(self.trained, self.gone + held, atol=1e-6)

    @invariant()
    def every_step_counts_once(self) -> None:
        claimed, mine = set(self.claimed), steps_of(self.marked())
        assert len(self.claimed) == len(claimed), "no step is in two accepted submissions"
        pending = steps_of(self.deferred.work) if self.deferred else set()
        assert claimed | self.unclaimed | mine | pending == self.steps
        if not self.plans:
            assert not mine & (claimed | pending), "what a plan has taken is not trained on"


def steps_of(work: Work) -> set[Step]:
    return {(step.round, step.sample_start) for step in work.trace}


def total(flows: Flows) -> np.ndarray:  # type: ignore[type-arg]
    return sum((flow.values() for _, flow in flows.named()), np.zeros(COUNT))


Miner.TestCase.settings = settings(
    max_examples=100, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Miner.TestCase
