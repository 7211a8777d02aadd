"""``brigade simulate --health``: how soon and how rightly the health detectors find faults, beside two plain rules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from common.errors import OperatorError
from validator.health.findings import Blame
from validator.simulator.health.breaks import BREAKS, SHOWN, BreakFigures, BreakRow
from validator.simulator.health.breaks import measure as measure_breaks
from validator.simulator.health.fleet import FELT
from validator.simulator.health.table import BEGINS, TABLE, Figures, Row, measure
from validator.simulator.scenario import RATES, Fault, Moment
from validator.simulator.traces import Trace

MAX_SEEDS = 100_000
DEFAULT_SEEDS = "0-49"


def parse_seeds(text: str) -> range:
    """``A-B`` or ``A``, both ends included. Raises OperatorError."""
    first, _, last = text.partition("-")
    try:
        found = range(int(first), int(last or first) + 1)
    except ValueError:
        found = range(0)
    if not 0 < len(found) <= MAX_SEEDS or found.start < 0:
        raise OperatorError(f"--seeds {text[:40]}: write A-B from 0 on, such as 0-499, at most {MAX_SEEDS} seeds")
    return found


def rows(faults: tuple[Fault, ...]) -> tuple[Row, ...]:
    """The table, or one row for a scenario. Raises OperatorError for faults that are none of rates."""
    if not faults:
        return TABLE
    for fault in faults:
        if fault.kind not in RATES:
            raise OperatorError(f"{fault.kind} is no fault of rates; --health knows {', '.join(RATES)}")
        if not isinstance(fault.start, Moment) or fault.start.phase != "open":
            raise OperatorError(f"{fault.kind}: --health counts whole rounds; write start = {{ round = {BEGINS} }}")
    found = [fault for fault in faults if fault.kind in FELT]
    if not found:
        return (Row("the scenario", faults),)
    if len({FELT[fault.kind] for fault in found}) > 1:
        raise OperatorError("one scenario for each: compute, uplinks and downlinks are told apart, not together")
    first = found[0]
    group = first.target.kind == "provider" and first.kind != "gpu_set"
    named = f"provider p{first.target.number:g}" if group else ""
    return (Row("the scenario", faults, FELT[first.kind], Blame.GROUP if group else Blame.NODE, named),)


def break_rows(faults: tuple[Fault, ...]) -> tuple[BreakRow, ...]:
    """The table of what breaks or is claimed, or one row for a scenario of that. Raises OperatorError as ``rows``."""
    if not faults:
        return BREAKS
    shown = {SHOWN[fault.kind] for fault in faults if fault.kind in SHOWN}
    if len(shown) > 1:
        raise OperatorError("one scenario for each: flap, truncate and liar are told apart, not together")
    return (BreakRow("the scenario", faults, next(iter(shown))),) if shown else ()


def measured(faults: tuple[Fault, ...], trace: Trace | None, seeds: range, as_json: bool) -> str:
    """Play every row on every seed and tell what came of it.

    Recorded churn is played where nothing is wrong, or in a scenario: elsewhere a fault has to be there to be found.
    """
    rates, broken = rows(faults), break_rows(faults)
    if faults and broken:
        if any(fault.kind in FELT for fault in faults):
            raise OperatorError("one scenario for each: what is slow and what breaks are told apart, not together")
        rates = ()
    found = [measure(row, seeds, trace if faults or row.blame is None else None) for row in rates]
    broke = [measure_breaks(row, seeds, trace if faults or row.kind is None else None) for row in broken]
    if as_json:
        tables = {"faults": [f.to_table() for f in found], "breaks": [asdict(f) for f in broke]}
        return json.dumps({"seeds": [seeds.start, seeds.stop - 1], **tables}, indent=2)
    return "\n\n".join(text for text in (told(found) if found else "", told_breaks(broke) if broke else "") if text)


def told(found: Iterable[Figures]) -> str:
    """A table for people."""
    head = ("fault", "found", "delay", "95 %", "right", "precision", "recall", "watches", "quarantines", "blamed")
    return _table([head, *(_cells(figures) for figures in found)])


def told_breaks(found: Iterable[BreakFigures]) -> str:
    """The same of what breaks or is claimed. Blamed: healthy machines in all seeds, and how many in a round of one."""
    head = ("what breaks, or is claimed", "found", "delay", "95 %", "free after", "as one", "blamed", "a round")
    return _table([head, *(_break_cells(figures) for figures in found)])


def _table(lines: list[tuple[str, ...]]) -> str:
    head = lines[0]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(text)


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        figures.fault,
        _share(figures.detected if figures.suspended is None else figures.suspended),
        _count(figures.median_delay),
        _count(figures.late_delay),
        _share(figures.right),
        _share(figures.precision),
        _share(figures.recall),
        f"{figures.watch_rate:.1e}",
        f"{figures.quarantine_rate:.1e}",
        str(figures.blamed),
    )


def _break_cells(figures: BreakFigures) -> tuple[str, ...]:
    counts = (figures.median_delay, figures.late_delay, figures.median_release, figures.together)
    rate = f"{figures.blame_rate:.1e}"
    return figures.fault, _share(figures.found), *map(_count, counts), str(figures.blamed), rate


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
