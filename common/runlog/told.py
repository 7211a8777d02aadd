"""What a log told on the way to its tail, and whether an object beside it can stand where that log ends.

A log is cut by leaving out its last slots: what is left is a whole log. Objects that follow from the missing slots give
the cut away, and here each kind is asked. When they were left out too, the bucket alone proves nothing: only a head
that a validator committed on chain does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common import keys
from common.keys import KeyParts
from common.runlog.entries import Entry, Paused, Resumed, RevisionCommitted, RolledBack, RoundAborted, RoundFrozen
from common.runlog.proving import VerifyError
from common.runlog.replay import Step
from common.runlog.rules import counted_tokens
from common.runlog.state import RunState
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256


@dataclass(frozen=True)
class Ended:
    """A round that the log ended."""

    committed: bool
    head: Revision
    """The head after it."""
    number: Revision
    """The revision that it made, or would have made."""
    plan: RoundFrozen | None
    spec: RunSpec

    @property
    def tokens(self) -> Mapping[Hotkey, int]:
        """Tokens that the plan accepted, by miner; a late one counts for its weight."""
        found: dict[Hotkey, int] = {}
        if self.plan is None:
            return found
        for member in self.plan.members:
            if member.decision == "accepted":
                counted = counted_tokens(self.spec, self.plan.base_revision, member)
                found[member.hotkey] = found.get(member.hotkey, 0) + counted
        return found


@dataclass(frozen=True)
class Obeyed:
    """An entry that names a command of the owner."""

    entry: Entry
    command_sha256: Sha256
    state: RunState
    """Before the entry."""


@dataclass
class Told:
    """Plans and ends of rounds, gathered slot by slot."""

    plans: dict[RoundId, RoundFrozen] = field(default_factory=dict)
    """The last attempt of each; those before it name the same submissions."""
    obeyed: list[Obeyed] = field(default_factory=list)
    ended: dict[RoundId, Ended] = field(default_factory=dict)

    def note(self, step: Step, before: RunState | None) -> None:
        """Take down what one slot of the log said; ``before`` is the state before it, None for the genesis."""
        if step.void is not None or step.entry is None:
            return
        data, state = step.entry.data, step.state
        if isinstance(data, RoundFrozen):
            self.plans[data.round] = data
        elif isinstance(data, RevisionCommitted):
            plan = self.plans.get(data.round)
            self.ended[data.round] = Ended(True, state.head, data.revision, plan, state.spec)
        elif isinstance(data, RoundAborted):
            plan = self.plans.get(data.round)
            self.ended[data.round] = Ended(False, state.head, state.next_revision, plan, state.spec)
        if isinstance(data, RoundAborted | Paused | Resumed | RolledBack) and data.command_sha256 is not None:
            assert before is not None
            self.obeyed.append(Obeyed(step.entry, data.command_sha256, before))

    def aborted_plans(self) -> list[Ended]:
        """Rounds that may have left an update or a snapshot behind."""
        return [end for end in self.ended.values() if end.plan is not None and not end.committed]


def slot_missing(state: RunState, key: str, why: str) -> VerifyError:
    """The object at ``key`` follows from a slot that is not there."""
    return VerifyError(keys.log_key(state.run, state.next_seq), f"it is missing, but {key} is there: {why}")


def check_tail(state: RunState, told: Told, key: str, parts: KeyParts) -> None:
    """Raise ``VerifyError`` for the first missing slot when the object at ``key`` proves that the log is cut."""
    round_id, revision, opened = parts.round_id, parts.revision, state.open_round
    if round_id is not None and round_id >= state.next_round:
        raise slot_missing(state, key, f"the log has not opened round {round_id}")
    is_open = opened is not None and opened.round == round_id
    if is_open and parts.kind == "report":
        raise slot_missing(state, key, f"a report is written when a round has ended, and round {round_id} has not")
    if is_open and parts.kind == "update" and opened is not None and opened.plan is None:
        raise slot_missing(state, key, f"an update is made by a plan, and round {round_id} has none")
    if parts.kind == "snapshot" and revision is not None and not _may_exist(state, told, revision):
        raise slot_missing(state, key, f"the log does not know revision {revision}")


def suspicion(state: RunState, told: Told, parts: KeyParts) -> str:
    """Why an update or a snapshot that the log does not name should not be there; empty when it may be a leftover."""
    if parts.kind == "update" and parts.round_id is not None:
        if parts.round_id not in told.ended:
            return _UNDER_WAY
        end = told.ended[parts.round_id]
        if end.committed:
            return f"round {parts.round_id} was committed with another update"
        return "" if end.plan else f"round {parts.round_id} was aborted before it had a plan"
    if parts.kind == "snapshot" and parts.revision is not None:
        if any(end.number == parts.revision for end in told.aborted_plans()):
            return ""
        if parts.revision == state.next_revision:
            return _UNDER_WAY
        return f"revision {parts.revision} was committed with another snapshot, or with none"
    return ""


_UNDER_WAY = "the log has the plan and not the commit: it is under way, the leader died, or the log may be cut"


def _may_exist(state: RunState, told: Told, revision: Revision) -> bool:
    if revision < state.next_revision:
        return True
    frozen = state.open_round is not None and state.open_round.plan is not None
    tried = any(end.number == revision for end in told.aborted_plans())
    return tried or (frozen and revision == state.next_revision)
