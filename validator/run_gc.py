"""``brigade run gc``: what retention keeps of a run, and what is still there of what the log has named for deletion.

It only looks: whoever leads writes the entries and deletes.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

from common import keys
from common.runlog.entries import RoundFrozen
from common.runlog.reader import LogReader
from common.runlog.retention import delete_after_s, is_named, next_gc, with_gc
from common.runlog.spent import Planned, is_spent, planned
from common.runlog.state import RunState
from common.store.port import ObjectInfo
from common.units import format_bytes, format_duration
from validator.run_place import Asked, find


def gc(asked: Asked) -> None:
    """Tell what of the run is kept, what is due to be deleted, and what will be next; deletes nothing itself."""
    place = find(asked)
    state, plans = read(place.log())
    for line in outline(state, list(place.listing_store().list(keys.run_prefix(place.run))), plans):
        typer.echo(line)


def read(log: LogReader) -> tuple[RunState, Planned]:
    """The state after the log's last slot, and what all its plans name. Raises as ``LogReader.steps``."""
    plans: list[RoundFrozen] = []
    state: RunState | None = None
    for step in log.steps():
        state = step.state
        if step.void is None and step.entry is not None and isinstance(step.entry.data, RoundFrozen):
            plans.append(step.entry.data)
    assert state is not None, "a log has a genesis"
    return state, planned(plans)


def outline(state: RunState, listing: Iterable[ObjectInfo], plans: Planned) -> list[str]:
    """The answer, in lines. Pure."""
    objects, spec = list(listing), state.spec
    kept = spec.retention
    whole = f"revisions {state.floor} to {state.next_revision - 1} are whole"
    policy = f"the spec keeps at least {kept.revisions} revisions and {kept.snapshots} snapshots of the head's lineage"
    lines = [f"kept: {whole}; {policy}"]
    named = _of(state, objects, plans)
    lines.append(f"the bucket: {_sum(objects)}")
    if state.collections:
        after = format_duration(delete_after_s(spec))
        lines.append(f"due, at the earliest {after} after slot {state.collections[-1].seq} named them: {_sum(named)}")
    ready = next_gc(state)
    if ready is None:
        return [*lines, "next: nothing is old enough"]
    more = [info for info in _of(with_gc(state, ready), objects, plans) if info not in named]
    return [*lines, f"next: revisions before {ready.floor}, unless a miner or a score needs them: {_sum(more)}"]


def _of(state: RunState, objects: Iterable[ObjectInfo], plans: Planned) -> list[ObjectInfo]:
    found = ((info, keys.parse_key(state.run, info.key)) for info in objects)
    return [info for info, parts in found if parts and (is_named(state, parts) or is_spent(state, plans, parts))]


def _sum(objects: list[ObjectInfo]) -> str:
    return f"{len(objects)} objects, {format_bytes(sum(info.size_bytes for info in objects))}"
