"""The run log as a miner follows it: the state, and what the plans said about this miner.

A view is a frozen fact; ``catch_up`` makes the next one from it, so it can be read in a worker thread and taken over
in the event loop. Restarting is starting without a view: the whole log is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.units import Hotkey, RoundId


@dataclass(frozen=True)
class LogView:
    """The log up to ``state.next_seq``."""

    state: RunState
    planned: Mapping[RoundId, PlanMember] = field(default_factory=dict)
    """This miner's place in the plan of each round that named it."""

    def committed(self, round_id: RoundId) -> bool:
        """Whether the round made a revision."""
        return any(node.round == round_id for node in self.state.revisions.values())


def catch_up(log: LogReader, hotkey: Hotkey, view: LogView | None) -> LogView:
    """The view after the last slot written so far. Blocks; raises as ``LogReader.steps``."""
    state = view.state if view else None
    planned = dict(view.planned) if view else {}
    for step in log.steps(state):
        state = step.state
        if step.void is None and step.entry is not None and isinstance(step.entry.data, RoundFrozen):
            plan = step.entry.data
            planned.update((plan.round, member) for member in plan.members if member.hotkey == hotkey)
    assert state is not None, "a log has a genesis"
    return LogView(state, planned)
