"""What a miner does next, for every combination of facts that matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.units import Revision, RoundId
from miner.phases import Facts, Move, decide

READY = Facts(
    head=Revision(2),
    open_round=RoundId(5),
    frozen=False,
    held=Revision(2),
    begun=None,
    carried=None,
    pending=None,
    done=False,
    gave_up=False,
    worked=False,
    order="train",
    behind=False,
    draining=False,
)
WORKING = replace(READY, begun=RoundId(5), worked=True)
SENT = replace(WORKING, pending=RoundId(5))


@pytest.mark.parametrize(
    ("facts", "move"),
    [
        (READY, Move.BEGIN),
        (replace(READY, order=None), Move.BEGIN),
        (replace(READY, behind=True), Move.WAIT),
        (replace(READY, held=None), Move.SYNC),
        (replace(READY, held=Revision(1)), Move.SYNC),
        (replace(READY, open_round=None), Move.WAIT),
        (replace(READY, frozen=True), Move.WAIT),
        (replace(READY, order="submit"), Move.WAIT),
        (replace(READY, order="wait"), Move.WAIT),
        (replace(READY, order="submit", carried=RoundId(5)), Move.BEGIN),
        (WORKING, Move.TRAIN),
        (replace(WORKING, behind=True), Move.TRAIN),
        (replace(WORKING, order=None), Move.TRAIN),
        (replace(WORKING, order="submit"), Move.SUBMIT),
        (replace(WORKING, order="submit", worked=False), Move.TRAIN),
        (replace(WORKING, order="submit", gave_up=True), Move.WAIT),
        (replace(WORKING, order="wait"), Move.WAIT),
        (replace(WORKING, frozen=True), Move.WAIT),
        (SENT, Move.DELIVER),
        (replace(SENT, begun=None), Move.DELIVER),
        (replace(SENT, done=True), Move.WAIT),
        (replace(SENT, frozen=True), Move.WAIT),
        (replace(SENT, open_round=RoundId(6)), Move.SETTLE),
        (replace(SENT, open_round=None), Move.SETTLE),
        (replace(WORKING, open_round=RoundId(6)), Move.SETTLE),
        (replace(READY, carried=RoundId(4)), Move.SETTLE),
        (replace(SENT, open_round=None, draining=True), Move.SETTLE),
        (replace(WORKING, draining=True), Move.WAIT),
    ],
)
def test_the_next_move(facts: Facts, move: Move) -> None:
    assert decide(facts)[0] is move


rounds = st.one_of(st.none(), st.integers(0, 3).map(RoundId))
any_facts = st.builds(
    Facts,
    head=st.integers(0, 2).map(Revision),
    open_round=rounds,
    frozen=st.booleans(),
    held=st.one_of(st.none(), st.integers(0, 2).map(Revision)),
    begun=rounds,
    carried=rounds,
    pending=rounds,
    done=st.booleans(),
    gave_up=st.booleans(),
    worked=st.booleans(),
    order=st.sampled_from(["train", "submit", "wait", None]),
    behind=st.booleans(),
    draining=st.booleans(),
)


@given(any_facts)
def test_rules_that_hold_whatever_is_known(facts: Facts) -> None:
    move, reason = decide(facts)
    assert reason
    ended = any(r is not None and r != facts.open_round for r in (facts.begun, facts.carried, facts.pending))
    assert (move is Move.SETTLE) == ended, "what ended is settled first, and nothing else is settled"
    if move in (Move.BEGIN, Move.TRAIN, Move.SUBMIT, Move.DELIVER):
        assert facts.held == facts.head, "work is done on the head only"
        assert facts.open_round is not None
        assert not facts.frozen
        assert not facts.draining
    if facts.pending is not None:
        assert move not in (Move.BEGIN, Move.TRAIN, Move.SUBMIT), "one submission a round"
