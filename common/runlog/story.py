"""The log as a story: one line for each slot, with what it cost. Pure.

Times between entries come from the writers' wall clocks, which only people read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from common.runlog.entries import (
    Entry,
    EntryData,
    Genesis,
    LeaderChanged,
    PlanMember,
    RevisionCommitted,
    RoundAborted,
    RoundFrozen,
    RoundOpened,
)
from common.runlog.replay import Step
from common.runlog.rules import plan_tokens
from common.runlog.state import RunState
from common.typed import to_json
from common.units import Hotkey, format_bytes, format_duration, printable

_COLUMNS = "{:>6}  {:<19}  {:>4}  {:<9}  {:<18}  {}"


@dataclass(frozen=True)
class Line:
    """What there is to say of one slot."""

    seq: int
    at: str
    """UTC, as the writer's clock had it; empty when the slot holds no entry."""
    term: str
    signer: str
    kind: str
    what: str
    """What happened, and why."""
    cost: str
    """Tokens, bytes and time; empty when there is nothing to count."""

    def text(self) -> str:
        cost = f"  [{self.cost}]" if self.cost else ""
        return _COLUMNS.format(str(self.seq), self.at, self.term, self.signer, self.kind, self.what + cost)


HEADING = _COLUMNS.format("slot", "time (UTC)", "term", "signer", "entry", "what, why  [what it cost]")


def tell(step: Step, before: RunState | None) -> Line:
    """The line of one slot; ``before`` is the state before it, None for the genesis."""
    seq = step.state.next_seq - 1
    entry = step.entry
    if entry is None:
        assert step.void is not None
        return Line(seq, "", "", "?", "void", f"{step.void.code}: {step.void.message}", "")
    if step.void is not None:
        what = f"{entry.kind} counts for nothing, {step.void.code}: {step.void.message}"
        return Line(seq, _time(entry.at_ms), str(entry.term), short(entry.signer), "void", what, "")
    what = _with_reason(_what(entry.data), entry)
    cost = _cost(entry, before)
    return Line(seq, _time(entry.at_ms), str(entry.term), short(entry.signer), entry.kind, what, cost)


def as_json(step: Step) -> dict[str, Any]:
    """The slot for programs."""
    entry, void = step.entry, step.void
    head: dict[str, Any] = {"seq": step.state.next_seq - 1, "void": void and void.code}
    if entry is None:
        return head
    return head | {
        "at_ms": entry.at_ms,
        "term": entry.term,
        "signer": entry.signer,
        "kind": entry.kind,
        "reason": entry.reason,
        "sha256": entry.slot_sha256,
        "data": to_json(entry.data),
    }


def short(hotkey: Hotkey) -> str:
    """The first letters of an address."""
    return f"{hotkey[:8]}…"


def _what(data: EntryData) -> str:
    if isinstance(data, Genesis):
        return f"the run begins with spec {data.spec_sha256[:8]}…"
    if isinstance(data, LeaderChanged):
        return "takes the lead"
    if isinstance(data, RoundOpened):
        return f"round {data.round} opens on revision {data.base_revision}"
    if isinstance(data, RoundFrozen):
        return f"round {data.round} takes {_decisions(data.members)}"
    if isinstance(data, RevisionCommitted):
        return f"round {data.round} makes revision {data.revision}"
    assert isinstance(data, RoundAborted)
    return f"round {data.round} ends without a revision ({data.code})"


def _with_reason(what: str, entry: Entry) -> str:
    """The writer's reason behind what happened, without what that says already."""
    reason = printable(entry.reason)
    if not isinstance(entry.data, Genesis | LeaderChanged):
        reason = reason.removeprefix(f"round {entry.data.round} ").removeprefix("aborted: ")
    return f"{what}: {reason}" if set(reason.split()) - set(what.split()) else what


def _decisions(members: tuple[PlanMember, ...]) -> str:
    accepted = sum(member.decision == "accepted" for member in members)
    refused = [f"{short(m.hotkey)} {m.code}" for m in members if m.decision == "rejected"]
    return f"{accepted} of {len(members)} deltas" + (f", without {', '.join(refused)}" if refused else "")


def _cost(entry: Entry, before: RunState | None) -> str:
    data = entry.data
    if isinstance(data, RoundFrozen):
        size = sum(member.delta.size_bytes for member in data.members)
        parts = [f"{plan_tokens(data):,} tokens", f"{format_bytes(size)} up"]
    elif isinstance(data, RevisionCommitted):
        size = sum(shard.update.size_bytes for shard in data.shards if shard.update)
        parts = [f"{data.tokens_merged:,} tokens merged", f"{format_bytes(size)} down"]
    elif isinstance(data, RoundAborted):
        plan = before.open_round.plan if before and before.open_round else None
        parts = [f"{plan_tokens(plan):,} tokens not merged"] if plan else []
    else:
        return ""
    opened = before.open_round if before else None
    if opened is not None:
        parts.append(f"{format_duration(max(0, entry.at_ms - opened.opened_ms) / 1000)} since it opened")
    return ", ".join(parts)


def _time(at_ms: int) -> str:
    """Total: a foreign number may be no time at all."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
