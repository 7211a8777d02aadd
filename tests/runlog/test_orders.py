"""The owner's orders: which is due, which is void, and what a pause, a rollback and a cold start do to the state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Rejected
from common.identity import SignedRecord, sign_record
from common.runlog.commands import (
    Order,
    abort_command,
    decode_command,
    pause_command,
    resume_command,
    rollback_command,
)
from common.runlog.entries import EntryData, RoundAborted
from common.runlog.orders import due, why_not
from common.runlog.replay import apply
from common.runlog.rules import ORDERED
from common.runlog.state import RunState
from common.units import Revision, RoundId, Sha256, sha256_hex
from tests.runlog.support import (
    ALICE,
    MINERS,
    OWNER,
    SPEC,
    aborted,
    after,
    committed,
    frozen,
    led,
    member,
    opened,
    paused,
    resumed,
    rolled_back,
    slot,
    steady,
)


def code(state: RunState, data: EntryData) -> str:
    """Why the entry is void; empty when it counts."""
    step = apply(state, slot(state, data, ALICE))
    return step.void.code if step.void else ""


def order(record: SignedRecord) -> Order:
    data = record.encode()
    return Order(sha256_hex(data), decode_command(data, SPEC))


def grown(rounds: int) -> RunState:
    return after(led(), *(opened, frozen, committed) * rounds)


def test_after_a_rollback_the_head_is_an_earlier_revision_and_numbers_go_on() -> None:
    state = after(grown(3), lambda s: rolled_back(s, 1), opened, frozen, committed)
    assert (state.head, state.head_node.parent, state.next_revision) == (4, 1, 5)
    assert [node.revision for node in state.lineage(state.head)] == [0, 1, 4]
    assert set(state.revisions) == {0, 1, 2, 3, 4}, "the tree keeps what was left"
    assert state.head_node.from_reset
    assert not any(state.revisions[Revision(r)].from_reset for r in range(4))
    assert not after(state, opened, frozen, committed).head_node.from_reset


def test_global_steps_are_counted_along_the_lineage() -> None:
    state, steps = after(grown(3), lambda s: rolled_back(s, 1), opened, frozen, committed), SPEC.inner.steps_of
    assert state.head_node.first_step == steps(Revision(0)) + steps(Revision(1))
    for node in grown(3).revisions.values():
        assert node.first_step == SPEC.inner.first_step(node.revision)


def test_what_was_sent_before_a_rollback_is_never_named_after_it() -> None:
    state = after(grown(2), opened, aborted, lambda s: rolled_back(s, 2), opened)
    old = member(state, MINERS[0], round=RoundId(2))
    assert code(state, frozen(state, member(state, MINERS[1]), old)) == "bad_plan"
    kept = after(grown(2), opened, aborted, opened)
    assert code(kept, frozen(kept, member(kept, MINERS[1]), old)) == "", "without a rollback it would count"


def test_a_rollback_voids_what_was_deferred_and_what_failed() -> None:
    def deferring(state: RunState) -> EntryData:
        waits = replace(member(state, MINERS[2], code="not_uploaded"), decision="deferred")
        return frozen(state, member(state, MINERS[0]), waits)

    state = after(led(), opened, deferring, committed, opened, lambda s: aborted(s, "loss_guard"))
    assert (len(state.deferred), state.failures) == (1, ("loss_guard",))
    state = after(state, lambda s: rolled_back(s, 1))
    assert (state.deferred, state.failures) == ((), ())


def test_no_rollback_while_a_round_is_open_or_to_what_nobody_knows() -> None:
    state = after(grown(1), opened)
    assert code(state, rolled_back(state, 0)) == "bad_transition"
    state = after(state, aborted)
    assert code(state, rolled_back(state, 2)) == "bad_transition"
    assert code(state, rolled_back(state, 1)) == "", "back to the head itself is a restart"


def test_a_command_is_obeyed_once() -> None:
    state = grown(2)
    back = rolled_back(state, 1)
    state = after(state, lambda _: back)
    assert code(state, back) == "bad_transition"
    assert code(state, replace(paused(state), command_sha256=back.command_sha256)) == "bad_transition"
    assert code(state, replace(paused(state), command_sha256=Sha256("no hash"))) == "bad_transition"


def test_only_what_is_ordered_names_a_command() -> None:
    state = after(grown(1), opened)
    end = aborted(state)
    assert code(state, replace(end, command_sha256=sha256_hex(b"command"))) == "bad_transition"
    assert code(state, replace(end, code=ORDERED)) == "bad_transition"
    assert code(state, replace(end, code=ORDERED, command_sha256=sha256_hex(b"command"))) == ""
    state = after(state, lambda _: end)
    assert code(state, replace(paused(state), command_sha256=None)) == "bad_transition"


def test_a_pause_keeps_rounds_closed_and_a_long_one_ends_in_a_cold_start() -> None:
    state = after(grown(1), paused)
    assert code(state, opened(state)) == "bad_transition"
    assert after(state, resumed).restarts == ()
    cold = after(state, lambda s: resumed(s, cold=True))
    (restart,) = cold.restarts
    assert (restart.kind, restart.revision, restart.round) == ("cold", 1, cold.next_round)
    assert not cold.resets_outer
    assert cold.first_round == state.first_round, "a cold start voids nothing"


def test_orders_are_due_until_something_of_their_kind_has_happened() -> None:
    state = after(grown(2), opened)
    pause, back = order(pause_command(state, OWNER, 1)), order(rollback_command(state, OWNER, 1, Revision(1)))
    end = order(abort_command(state, OWNER, 1))
    assert due(state, (pause, end, back)) == back
    assert due(state, (pause, end)) == end
    state = after(state, lambda s: RoundAborted(RoundId(2), Revision(2), ORDERED, ("why",), end.sha256))
    assert due(state, (pause, end)) == pause, "the abort was obeyed, and its round is over"
    state = after(state, lambda s: replace(rolled_back(s, 1), command_sha256=back.sha256))
    again = order(rollback_command(grown(2), OWNER, 2, Revision(0)))
    assert why_not(state, again.command), "an order typed twice is obeyed once"
    assert due(state, (pause, end, back, again)) == pause, "a rollback does not void a pause"
    state = after(state, lambda s: replace(paused(s), command_sha256=pause.sha256))
    go_on = order(resume_command(state, OWNER, 3))
    assert due(state, (pause, go_on)) == go_on
    later = after(state, lambda s: replace(resumed(s), command_sha256=go_on.sha256), paused)
    assert due(later, (pause, end, back, again, go_on)) is None


def test_of_two_orders_the_later_one_counts() -> None:
    state = grown(2)
    first, second = (order(rollback_command(state, OWNER, at, Revision(to))) for at, to in ((1, 0), (2, 1)))
    assert due(state, (first, second)) == second


def test_nonsense_can_not_be_ordered() -> None:
    state = grown(1)
    for make in (
        lambda: resume_command(state, OWNER, 1),
        lambda: abort_command(state, OWNER, 1),
        lambda: rollback_command(state, OWNER, 1, Revision(2)),
        lambda: pause_command(after(state, paused), OWNER, 1),
    ):
        with pytest.raises(ValueError, match=r"run|round"):
            make()


@steady(40)
@given(
    st.dictionaries(st.sampled_from(["revision", "round", "seq", "action", "signer"]), st.none() | st.integers(-2, 9))
)
def test_a_command_says_just_what_its_kind_needs(changes: dict[str, object]) -> None:
    record = rollback_command(grown(1), OWNER, 1, Revision(1))
    body = dict(record.body) | changes
    try:
        command = decode_command(sign_record("command", body, OWNER).encode(), SPEC)
    except (Rejected, ValueError):
        return
    assert command.action == "rollback"
    assert command.revision is not None
    assert command.round is None
