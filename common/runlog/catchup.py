"""The way to a revision that is the least to download: from what is held, or from a snapshot. Pure.

Whoever is behind by k revisions replays k steps, or takes a snapshot and the steps after it. A step is what leads from
a revision's parent to it: its update for a miner; for a validator, which must know the residual as well, the deltas of
its plan. Sizes follow from spec and log, so both ways are known to the byte before anything is read. An object that
turns out to be missing or wrong leaves the next cheapest way; what was reached before it is kept. Invariants: the ways
come cheapest first, and the first one is no dearer than any other sequence of these objects that ends in the target;
every value on the way was proved by ``load`` or ``step`` against the hashes that the log committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from common.errors import Rejected
from common.units import Revision, format_bytes

UNAVAILABLE = "revision_unavailable"
T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """One revision of the target's lineage, and what of it can be downloaded."""

    revision: Revision
    step_bytes: int | None
    """From its parent; None when there is no such step: at revision 0, or when it was deleted or found missing."""
    snapshot_bytes: int | None
    """None when there is no snapshot."""


@dataclass(frozen=True)
class Way:
    """A snapshot, or what is held, and the steps after it."""

    start: Revision
    snapshot: bool
    """Whether the start is downloaded; False: it is held."""
    steps: tuple[Revision, ...]
    download_bytes: int

    @property
    def told(self) -> str:
        begin = f"the snapshot of revision {self.start}" if self.snapshot else f"revision {self.start}, which is held,"
        return f"{begin} and {len(self.steps)} steps ({format_bytes(self.download_bytes)})"


@dataclass(frozen=True)
class At(Generic[T]):
    """A revision that somebody has."""

    revision: Revision
    value: T


def ways(stages: Sequence[Stage], held: Revision | None) -> tuple[Way, ...]:
    """All ways to the last of ``stages``, which are a lineage in order, the cheapest first; none when none is whole.

    Of two that cost the same the one with fewer steps comes first.
    """
    found: list[Way] = []
    steps: tuple[Revision, ...] = ()
    cost = 0
    for stage in reversed(stages):
        if stage.revision == held:
            found.append(Way(stage.revision, False, steps, cost))
        if stage.snapshot_bytes is not None:
            found.append(Way(stage.revision, True, steps, cost + stage.snapshot_bytes))
        if stage.step_bytes is None:
            break
        steps, cost = (stage.revision, *steps), cost + stage.step_bytes
    return tuple(sorted(found, key=lambda way: (way.download_bytes, len(way.steps), way.snapshot)))


def told(target: Revision, found: Sequence[Way]) -> str:
    """The chosen way and the next one, with what each is to download."""
    chosen = f"to revision {target} by {found[0].told}"
    other = next((way for way in found[1:] if way.snapshot != found[0].snapshot), None) or next(iter(found[1:]), None)
    return f"{chosen}; there is no other way" if other is None else f"{chosen}; the other way: {other.told}"


def reach(
    stages: Sequence[Stage],
    held: At[T] | None,
    load: Callable[[Revision], T],
    step: Callable[[Revision, T], T],
    say: Callable[[str], None],
    notes: list[str],
) -> T:
    """Go the cheapest way that is whole. ``load`` reads a snapshot, ``step`` makes a revision of its parent's value.

    ``say`` is told which way is taken and what the other costs, ``notes`` get what was missing or wrong. Raises
    ``Rejected('revision_unavailable')`` when no way is left, and what ``load`` and ``step`` raise but ``Rejected``.
    """
    left = list(stages)
    while found := ways(left, held.revision if held else None):
        say(told(stages[-1].revision, found))
        broken, held = _go(left, found[0], held, load, step, notes)
        if broken is None:
            assert held is not None
            return held.value
        left[broken[0]] = broken[1]
    why = "; ".join(notes) or "the log names no snapshot that leads there"
    raise Rejected(UNAVAILABLE, f"no way leads to revision {stages[-1].revision}: {why}. {ADVICE}")


ADVICE = "Put the objects back, or let the owner roll the run back to a revision that is whole (brigade run rollback)"


def _go(
    left: Sequence[Stage],
    way: Way,
    held: At[T] | None,
    load: Callable[[Revision], T],
    step: Callable[[Revision, T], T],
    notes: list[str],
) -> tuple[tuple[int, Stage] | None, At[T] | None]:
    """Go one way to its end, or to the stage of which an object can't be used: its index, and the stage without it."""
    index = next(i for i, stage in enumerate(left) if stage.revision == way.start)
    if way.snapshot:
        try:
            held = At(way.start, load(way.start))
        except Rejected as error:
            notes.append(f"the snapshot of revision {way.start} can't be used: {error.message}")
            return (index, replace(left[index], snapshot_bytes=None)), held
    assert held is not None, "a way begins at a snapshot or at what is held"
    for revision in way.steps:
        index += 1
        try:
            held = At(revision, step(revision, held.value))
        except Rejected as error:
            notes.append(f"the step to revision {revision} can't be taken: {error.message}")
            return (index, replace(left[index], step_bytes=None)), held
    return None, held
