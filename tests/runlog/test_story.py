"""The story of a log says each thing once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.runlog.entries import NO_PREVIOUS, Draft, EntryData, encode_entry
from common.runlog.replay import apply
from common.runlog.state import RunState
from common.runlog.story import tell
from tests.runlog.support import ALICE, SPEC, aborted, committed, frozen, opened, slot, started, takeover


def told(state: RunState, data: EntryData, reason: str) -> str:
    """What the story says of an entry with this reason."""
    assert state.head_sha256 != NO_PREVIOUS
    draft = Draft(SPEC.run, state.next_seq, state.head_sha256, 1, "n", 1_700_000_000_000, reason, data)
    return tell(apply(state, encode_entry(draft, ALICE)), state).what


def after(*story: Callable[[RunState], EntryData]) -> RunState:
    state = started()
    for entry in story:
        state = apply(state, slot(state, entry(state), ALICE, term=1)).state
    return state


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
            "round 0 ends without a revision (no_quorum): 3 validated tokens, the quorum is 32",
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
    state = after(*before)
    assert told(state, entry(state), reason) == line
