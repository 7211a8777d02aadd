"""The story of a log says each thing once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from common.runlog.entries import NO_PREVIOUS, Draft, EntryData, Paused, Resumed, encode_entry
from common.runlog.replay import apply
from common.runlog.state import RunState
from common.runlog.story import tell
from common.units import Sha256
from tests.runlog.support import (
    ALICE,
    MINERS,
    SPEC,
    aborted,
    after,
    committed,
    frozen,
    member,
    opened,
    started,
    takeover,
)


def told(state: RunState, data: EntryData, reason: str) -> str:
    """What the story says of an entry with this reason."""
    assert state.head_sha256 != NO_PREVIOUS
    draft = Draft(SPEC.run, state.next_seq, state.head_sha256, 1, "n", 1_700_000_000_000, reason, data)
    return tell(apply(state, encode_entry(draft, ALICE)), state).what


def lead(_: RunState) -> EntryData:
    return takeover()


@pytest.mark.parametrize(
    ("before", "entry", "reason", "line"),
    [
        ((lead,), opened, "round 0 on revision 0", "round 0 opens on revision 0"),
        ((lead, opened, frozen), committed, "round 0 makes revision 1", "round 0 makes revision 1"),
        (
            (lead, opened),
            frozen,
            "round 0 3 accepted, 0 rejected, 300 tokens",
            "round 0 takes 3 of 3 deltas: 3 accepted, 0 rejected, 300 tokens",
        ),
        (
            (lead, opened),
            aborted,
            "round 0 aborted: 3 validated tokens, the quorum is 32",
            "round 0 ends without a revision (no_quorum): 3 validated tokens, the quorum is 32 [why]",
        ),
        ((), lead, "leading term 1: the lease was free", "takes the lead: leading term 1: the lease was free"),
    ],
)
def test_a_reason_is_told_without_what_stands_before_it(
    before: tuple[Callable[[RunState], EntryData], ...],
    entry: Callable[[RunState], EntryData],
    reason: str,
    line: str,
) -> None:
    state = after(started(), *before)
    assert told(state, entry(state), reason) == line


def test_the_story_tells_who_comes_late_who_is_waited_for_and_what_was_damped() -> None:
    def deferring(state: RunState) -> EntryData:
        waits = replace(member(state, MINERS[2], code="not_uploaded"), decision="deferred")
        return frozen(state, member(state, MINERS[0], tokens=32), waits)

    def taking(state: RunState) -> EntryData:
        (late,) = state.deferred
        return frozen(state, replace(late, decision="accepted", code="", weight=1.0, scale=1.0, tokens=80))

    waiting = told(after(started(), lead, opened), deferring(after(started(), lead, opened)), "")
    assert waiting == f"round 0 takes 1 of 2 deltas, waits for {MINERS[2].hotkey[:8]}…, damped to 0.50"
    state = after(started(), lead, opened, deferring, committed, opened)
    assert (
        told(state, taking(state), "")
        == f"round 1 takes 1 of 1 deltas, late from {MINERS[2].hotkey[:8]}…, damped to 0.56"
    )


def test_a_pause_tells_its_evidence_and_who_ended_it() -> None:
    pause = Paused("loss_guard", ("held-out loss 5.0 to 6.0", "three rounds"))
    line = told(after(started(), lead), pause, "")
    assert line == "the run is paused until its owner resumes it (loss_guard) [held-out loss 5.0 to 6.0; three rounds]"
    state = after(started(), lead, lambda _: pause)
    assert told(state, Resumed(Sha256("ab" * 32)), "") == "the run goes on, as its owner orders (abababab…)"
