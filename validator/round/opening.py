"""Whether the next round may be opened, and if not, why. Pure.

Rounds that fail for what was delivered, one after the other, stop the run until a person has looked: the log's rules
refuse to open another. Rounds that fail for lack of members never do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.runlog.rules import MAX_FAILURES
from common.runlog.state import RunState
from common.units import Revision, Sha256


@dataclass(frozen=True)
class Opening:
    """What the leader is to do when no round is open, and why."""

    do: Literal["open", "pause", "resume", "wait", "rest"]
    """open: append ``round_opened``; pause, resume: append that entry; wait: for the owner's order; rest: the run has
    reached what it was started for."""
    reason: str
    order: Sha256 | None = None
    """Of resume: the command."""


def next_opening(run: RunState, until: Revision | None = None, order: Sha256 | None = None) -> Opening:
    """What to do after a round. ``until``: the revision that ends this run; ``order``: the owner's, to resume it."""
    if run.open_round is not None:
        raise ValueError(f"round {run.open_round.round} is open")
    if run.paused is not None:
        if order is not None:
            return Opening("resume", "the owner has looked: the run goes on", order)
        return Opening("wait", f"paused for {run.paused.code}: `brigade run resume` goes on")
    if len(run.failures) >= MAX_FAILURES:
        told = f"{len(run.failures)} rounds in a row were aborted for what was delivered"
        return Opening("pause", f"{told}: a person must look")
    if until is not None and run.head >= until:
        return Opening("rest", f"revision {run.head} is committed: done")
    return Opening("open", f"round {run.next_round} on revision {run.head}")
