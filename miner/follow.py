"""The run log as a miner follows it: the state, and what the plans said about this miner.

A view is a frozen fact; ``catch_up`` makes the next one from it, so it can be read in a worker thread and taken over
in the event loop. Restarting is starting without a view: the whole log is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.errors import Fatal
from common.runlog.entries import Entry, PlanMember, RoundFrozen
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.units import Hotkey, Revision, RoundId, Sha256
from miner.delta import SHARD
from miner.settle import OwnPlan

MOST_PLANS = 16


@dataclass(frozen=True)
class LogView:
    """The log up to ``state.next_seq``."""

    state: RunState
    planned: Mapping[RoundId, tuple[PlanMember, ...]] = field(default_factory=dict)
    """This miner's places in the newest plan of each round that named it, or that did before it was made again."""
    first_plans: Mapping[RoundId, Entry] = field(default_factory=dict)
    """The first plan of each of the newest rounds: what a leader's receipts are compared with."""

    def plans(self, after: Revision, upto: Revision) -> tuple[OwnPlan, ...]:
        """The plans that led from revision ``after`` to ``upto``, in order. Raises ``Fatal`` for another branch."""
        path = self.state.lineage(upto)
        start = next((i for i, node in enumerate(path) if node.revision == after), None)
        if start is None:
            raise Fatal(f"revision {upto} does not descend from revision {after}, which this miner has settled")
        plans = []
        for node in path[start + 1 :]:
            assert node.round is not None, "only revision 0 is made by no round"
            assert node.parent is not None, "only revision 0 has no parent"
            plans.append(OwnPlan(node.revision, node.parent, self.planned.get(node.round, ())))
        return tuple(plans)

    @property
    def deferred(self) -> frozenset[tuple[RoundId, Sha256]]:
        """This miner's submissions that the open round's plan defers, or that of the head did: what may still come."""
        opened, made = self.state.open_round, self.state.head_node.round
        rounds = {made} | ({opened.round} if opened and opened.plan else set())
        members = [m for round_id in rounds if round_id is not None for m in self.planned.get(round_id, ())]
        return frozenset((m.round, m.delta.sha256) for m in members if m.decision == "deferred")


def catch_up(log: LogReader, hotkey: Hotkey, view: LogView | None) -> LogView:
    """The view after the last slot written so far. Blocks; raises as ``LogReader.steps``."""
    state = view.state if view else None
    planned = dict(view.planned) if view else {}
    plans = dict(view.first_plans) if view else {}
    for step in log.steps(state):
        state = step.state
        if step.void is None and step.entry is not None and isinstance(step.entry.data, RoundFrozen):
            _note(planned, step.entry.data, hotkey)
            _keep_first(plans, step.entry, step.entry.data)
    assert state is not None, "a log has a genesis"
    return LogView(state, planned, plans)


def _keep_first(plans: dict[RoundId, Entry], entry: Entry, plan: RoundFrozen) -> None:
    plans.setdefault(plan.round, entry)
    while len(plans) > MOST_PLANS:
        del plans[min(plans)]


def _note(planned: dict[RoundId, tuple[PlanMember, ...]], plan: RoundFrozen, hotkey: Hotkey) -> None:
    """A later attempt of the same round takes the place of the one before."""
    mine = tuple(m for m in plan.members if m.hotkey == hotkey and m.shard == SHARD)
    if mine or plan.round in planned:
        planned[plan.round] = mine
