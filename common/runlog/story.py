"""The log as a story: one line for each slot, with what it cost. Pure.

Times between entries come from the writers' wall clocks, which only people read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from common.runlog.entries import (
    Entry,
    EntryData,
    Gc,
    Genesis,
    LeaderChanged,
    LeadersChanged,
    Paused,
    Resumed,
    RevisionCommitted,
    RolledBack,
    RoundAborted,
    RoundFrozen,
    RoundOpened,
    StorageMoved,
)
from common.runlog.replay import Step
from common.runlog.rules import plan_tokens
from common.runlog.state import RunState
from common.typed import to_json
from common.units import Hotkey, Sha256, format_bytes, format_duration, printable

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
    return _TOLD[type(data)](data)


def _frozen(data: RoundFrozen) -> str:
    again = f" in attempt {data.attempt + 1}" if data.attempt else ""
    damped = f", damped to {data.damping:.2f}" if data.damping < 1 else ""
    return f"round {data.round} takes{again} {_decisions(data)}{damped}"


def _aborted(data: RoundAborted) -> str:
    return f"round {data.round} ends without a revision{_ordered(data.command_sha256) or f' ({data.code})'}"


def _paused(data: Paused) -> str:
    return f"the run is paused until its owner resumes it{_ordered(data.command_sha256) or f' ({data.code})'}"


def _resumed(data: Resumed) -> str:
    cold = ", after so long a pause from a cold start" if data.cold else ""
    return f"the run goes on{_ordered(data.command_sha256)}{cold}"


def _rolled_back(data: RolledBack) -> str:
    return f"the run goes back to revision {data.revision}{_ordered(data.command_sha256)}"


def _ordered(command: Sha256 | None) -> str:
    return "" if command is None else f", as its owner orders ({command[:8]}…)"


_TOLD: Mapping[type[EntryData], Callable[[Any], str]] = {
    Genesis: lambda data: f"the run begins with spec {data.spec_sha256[:8]}…",
    LeaderChanged: lambda data: "takes the lead",
    LeadersChanged: lambda data: f"from here on may lead: {', '.join(map(short, data.validators))}",
    StorageMoved: lambda data: (
        f"the run moves from {data.source.base_url} to {data.target.base_url}, where its log goes on"
    ),
    RoundOpened: lambda data: f"round {data.round} opens on revision {data.base_revision}",
    RoundFrozen: _frozen,
    RevisionCommitted: lambda data: f"round {data.round} makes revision {data.revision}",
    RoundAborted: _aborted,
    Paused: _paused,
    Resumed: _resumed,
    RolledBack: _rolled_back,
    Gc: lambda data: f"what only revisions before {data.floor} need may be deleted",
}


def _with_reason(what: str, entry: Entry) -> str:
    """The writer's reason behind what happened, without what that says already."""
    reason = printable(entry.reason)
    if isinstance(entry.data, RoundOpened | RoundFrozen | RevisionCommitted | RoundAborted):
        reason = reason.removeprefix(f"round {entry.data.round} ").removeprefix("aborted: ")
    told = f"{what}: {reason}" if set(reason.split()) - set(what.split()) else what
    if isinstance(entry.data, RoundAborted | Paused) and entry.data.evidence:
        told += f" [{'; '.join(printable(fact) for fact in entry.data.evidence)}]"
    return told


def _decisions(plan: RoundFrozen) -> str:
    accepted = [member for member in plan.members if member.decision == "accepted"]
    told = f"{len(accepted)} of {len(plan.members)} deltas"
    late = [short(m.hotkey) for m in accepted if m.base_revision != plan.base_revision]
    adopted = [short(m.hotkey) for m in accepted if m.base_revision == plan.base_revision and m.round != plan.round]
    waiting = [short(m.hotkey) for m in plan.members if m.decision == "deferred"]
    refused = [f"{short(m.hotkey)} {m.code}" for m in plan.members if m.decision == "rejected"]
    told += f", late from {', '.join(late)}" if late else ""
    told += f", of an aborted round from {', '.join(adopted)}" if adopted else ""
    told += f", waits for {', '.join(waiting)}" if waiting else ""
    return told + (f", without {', '.join(refused)}" if refused else "")


def _cost(entry: Entry, before: RunState | None) -> str:
    data, spec = entry.data, before.spec if before else None
    if isinstance(data, RoundFrozen) and spec is not None:
        size = sum(member.delta.size_bytes for member in data.members)
        parts = [f"{plan_tokens(spec, data):,} tokens", f"{format_bytes(size)} up"]
    elif isinstance(data, RevisionCommitted):
        size = sum(shard.update.size_bytes for shard in data.shards if shard.update)
        parts = [f"{data.tokens_merged:,} tokens merged", f"{format_bytes(size)} down"]
    elif isinstance(data, RoundAborted):
        plan = before.open_round.plan if before and before.open_round else None
        parts = [f"{plan_tokens(spec, plan):,} tokens not merged"] if plan and spec else []
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
