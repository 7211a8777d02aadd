"""A run that stands still until a person has looked: what the log is told when it pauses.

Everything comes from log and bucket, so a restarted or another leader pauses for the same reasons. What ends a pause
is in ``orders.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.runlog.entries import Paused, RoundAborted
from common.runlog.rules import MAX_FAILURES
from common.runlog.state import Pause, RunState
from common.store.port import ObjectReader
from validator.logtail import failures

MOST_FACTS = 32
"""Lines of evidence that an entry holds of one round."""
MAX_FACT = 300
LAST_TOLD = 3
"""Lines of evidence that a status repeats."""


def pause_entry(reader: ObjectReader, run: RunState) -> tuple[Paused, str]:
    """The entry that pauses the run, with the evidence of the rounds that failed, and its reason. Blocking."""
    return pause_for(run, failures(reader, run))


def pause_for(run: RunState, failed: Sequence[RoundAborted]) -> tuple[Paused, str]:
    """The same from the rounds that ``run.failures`` counts. Pure."""
    facts = [f"round {one.round} {one.code}: {fact}" for one in failed for fact in _facts(one)]
    reason = (
        f"{len(run.failures)} rounds in a row failed for what was delivered ({', '.join(run.failures)}); the head "
        "stays, miners go on training, and somebody has to look before the next round"
    )
    return Paused(run.failures[-1], bounded(facts)), reason


def told(run: RunState, pause: Pause) -> str:
    """Why the run stands still, and what to type."""
    why = "; ".join(pause.evidence[-LAST_TOLD:])
    return (
        f"paused since slot {pause.seq} ({pause.code}): {why[:500]}. `brigade run log` tells more; once the cause is "
        f"gone, the owner types `brigade run resume`, with --dir or --run {run.run}"
    )


def bounded(facts: Sequence[str]) -> tuple[str, ...]:
    """Evidence as an entry can hold it."""
    return tuple(fact[:MAX_FACT] for fact in facts[: MAX_FAILURES * MOST_FACTS])


def _facts(failed: RoundAborted) -> tuple[str, ...]:
    return failed.evidence[:MOST_FACTS] or ("nothing was measured",)
