"""What a miner does next, for every combination of facts that matters, and its own deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import timeouts
from common.units import Revision, RoundId
from miner.deadlines import BUSY_SHARE, DEFAULT_NOTICE_S, LEAST_NOTICE_S, UPLOAD_SAFETY, Deadlines
from miner.policy import Facts, Move, decide
from tests.support.specs import tiny_spec

TIMES = Deadlines(drip_s=10.0, submit_s=20.0, look_s=0.5, notice_s=25.0)
READY = Facts(
    head=Revision(2),
    open_round=RoundId(5),
    open_base=Revision(2),
    frozen=False,
    behind=False,
    order="train",
    freeze_in_s=100.0,
    idle=False,
    restart=False,
    ready=True,
    fetching=False,
    held=Revision(2),
    syncing=False,
    settled=Revision(2),
    base=None,
    stream=None,
    steps=0,
    nominal_steps=8,
    fresh_steps=0,
    sated=False,
    making=None,
    newest=None,
    since_s=0.0,
    upload_s=None,
    to_deliver=False,
    delivering=None,
    recall=False,
    left_s=None,
    draining=False,
    hurry=False,
)
WORKING = replace(READY, base=Revision(2), stream=RoundId(5), steps=6, fresh_steps=6)
DUE = replace(WORKING, since_s=11.0)
CLOSING = replace(WORKING, order="submit", freeze_in_s=15.0)
SENT = replace(CLOSING, newest="final", fresh_steps=2, delivering="final", left_s=3.0)
SLOW = replace(WORKING, upload_s=40.0)
NEXT = replace(WORKING, head=Revision(3), open_base=Revision(3), open_round=RoundId(6))
DRAINING = replace(WORKING, draining=True)


@pytest.mark.parametrize(
    ("facts", "move"),
    [
        (replace(READY, ready=False), Move.FETCH),
        (replace(READY, ready=False, fetching=True), Move.REST),
        (replace(READY, held=None), Move.SYNC),
        (replace(READY, held=None, syncing=True), Move.REST),
        (replace(READY, settled=None), Move.SETTLE),
        (replace(READY, settled=Revision(1)), Move.SETTLE),
        (READY, Move.BEGIN),
        (replace(READY, order=None, freeze_in_s=None), Move.BEGIN),
        (replace(READY, order="submit"), Move.BEGIN),
        (replace(READY, frozen=True, order="wait"), Move.BEGIN),
        (replace(READY, behind=True), Move.REST),
        (replace(READY, open_round=None, open_base=None), Move.REST),
        (replace(READY, to_deliver=True, open_round=None, open_base=None), Move.DELIVER),
        (WORKING, Move.TRAIN),
        (replace(WORKING, order=None), Move.TRAIN),
        (replace(WORKING, order="wait", frozen=True), Move.TRAIN),
        (replace(WORKING, open_round=None, open_base=None), Move.TRAIN),
        (replace(WORKING, sated=True), Move.REST),
        (replace(WORKING, open_round=None, open_base=None, idle=True), Move.REST),
        (replace(WORKING, idle=True), Move.TRAIN),
        (replace(WORKING, stream=RoundId(4)), Move.RESTREAM),
        (replace(WORKING, stream=RoundId(4), frozen=True), Move.TRAIN),
        (NEXT, Move.SYNC),
        (replace(NEXT, syncing=True), Move.TRAIN),
        (replace(NEXT, syncing=True, since_s=99.0, order="submit"), Move.TRAIN),
        (replace(NEXT, held=Revision(3)), Move.SETTLE),
        (DUE, Move.DRIP),
        (replace(DUE, order=None), Move.DRIP),
        (replace(DUE, fresh_steps=0), Move.TRAIN),
        (replace(DUE, frozen=True), Move.TRAIN),
        (replace(DUE, delivering="drip"), Move.TRAIN),
        (replace(DUE, delivering="pending"), Move.TRAIN),
        (replace(DUE, making="drip"), Move.TRAIN),
        (replace(DUE, newest="final"), Move.TRAIN),
        (replace(DUE, upload_s=6.0), Move.TRAIN),  # drips would occupy the uplink for more than half of the time
        (replace(DUE, upload_s=5.0), Move.DRIP),
        (replace(DUE, upload_s=5.0, freeze_in_s=9.0), Move.TRAIN),  # it would be in the way of the final one
        (CLOSING, Move.FINAL),
        (replace(CLOSING, fresh_steps=0, newest="drip"), Move.TRAIN),
        (replace(CLOSING, steps=0, fresh_steps=0), Move.TRAIN),
        (replace(CLOSING, making="drip"), Move.TRAIN),
        (replace(CLOSING, delivering="drip", left_s=4.0, upload_s=5.0), Move.FINAL),
        (replace(CLOSING, delivering="drip", left_s=4.0, upload_s=16.0), Move.TRAIN),  # only the drip is in time
        (replace(CLOSING, delivering="drip", left_s=16.0, upload_s=17.0), Move.FINAL),
        (SENT, Move.TRAIN),
        (replace(SENT, delivering=None, to_deliver=True), Move.DELIVER),
        (replace(SENT, delivering="drip", recall=True), Move.RECALL),
        (SLOW, Move.TRAIN),
        (replace(SLOW, freeze_in_s=60.0), Move.FINAL),
        (replace(SLOW, freeze_in_s=61.0), Move.TRAIN),
        (replace(SLOW, freeze_in_s=61.0, delivering="pending", left_s=1.0), Move.FINAL),
        (replace(SLOW, freeze_in_s=60.0, steps=1, fresh_steps=1), Move.TRAIN),  # not worth an upload yet
        (replace(SLOW, freeze_in_s=10.0, upload_s=10.0), Move.TRAIN),  # a round waits longer than that for uploads
        (DRAINING, Move.FINAL),
        (replace(DRAINING, making="final"), Move.REST),
        (replace(DRAINING, newest="final", delivering="final"), Move.REST),
        (replace(DRAINING, newest="final", to_deliver=True), Move.DELIVER),
        (replace(DRAINING, newest="final"), Move.LEAVE),
        (replace(DRAINING, fresh_steps=0), Move.LEAVE),
        (replace(DRAINING, fresh_steps=0, delivering="pending"), Move.REST),
        (replace(DRAINING, frozen=True), Move.LEAVE),
        (replace(DRAINING, frozen=True, delivering="final"), Move.REST),
        (replace(DRAINING, open_round=None, open_base=None), Move.LEAVE),
        (replace(DRAINING, making="final", delivering="drip", hurry=True), Move.LEAVE),
    ],
)
def test_the_next_move(facts: Facts, move: Move) -> None:
    assert decide(facts, TIMES, overlap=True)[0] is move


@pytest.mark.parametrize(
    ("facts", "move"),
    [
        (WORKING, Move.TRAIN),
        (CLOSING, Move.FINAL),
        (replace(CLOSING, making="final"), Move.REST),
        (SENT, Move.REST),
        (replace(WORKING, frozen=True), Move.REST),
        (replace(WORKING, order="wait"), Move.REST),
        (replace(WORKING, open_round=None, open_base=None), Move.REST),
        (replace(NEXT, syncing=True), Move.REST),
    ],
)
def test_without_overlap_it_waits_for_the_revision(facts: Facts, move: Move) -> None:
    assert decide(facts, TIMES, overlap=False)[0] is move


def test_no_drips_where_the_run_wants_none() -> None:
    assert decide(replace(DUE, since_s=1e9), replace(TIMES, drip_s=0.0), overlap=True)[0] is Move.TRAIN


maybe_round = st.one_of(st.none(), st.integers(0, 3).map(RoundId))
maybe_revision = st.one_of(st.none(), st.integers(0, 2).map(Revision))
maybe_s = st.one_of(st.none(), st.floats(0, 200))
any_facts = st.builds(
    Facts,
    head=st.integers(0, 2).map(Revision),
    open_round=maybe_round,
    open_base=maybe_revision,
    frozen=st.booleans(),
    behind=st.booleans(),
    order=st.sampled_from(["train", "submit", "wait", None]),
    freeze_in_s=maybe_s,
    idle=st.booleans(),
    ready=st.booleans(),
    fetching=st.booleans(),
    held=maybe_revision,
    syncing=st.booleans(),
    settled=maybe_revision,
    base=maybe_revision,
    stream=maybe_round,
    steps=st.integers(0, 9),
    nominal_steps=st.integers(1, 9),
    fresh_steps=st.integers(0, 9),
    sated=st.booleans(),
    making=st.sampled_from([None, "drip", "final"]),
    newest=st.sampled_from([None, "drip", "final"]),
    since_s=st.floats(0, 200),
    upload_s=maybe_s,
    to_deliver=st.booleans(),
    delivering=st.sampled_from([None, "drip", "final", "pending"]),
    recall=st.booleans(),
    left_s=maybe_s,
    draining=st.booleans(),
    hurry=st.booleans(),
)


@given(any_facts, st.booleans())
def test_rules_that_hold_whatever_is_known(facts: Facts, overlap: bool) -> None:
    move, reason = decide(facts, TIMES, overlap)
    assert reason
    if move in (Move.DRIP, Move.FINAL):
        assert facts.base is not None
        assert facts.base == facts.open_base
        assert facts.settled in (facts.base, facts.held), "what the plans said is settled before"
        assert not facts.frozen
        assert facts.fresh_steps > 0, "nothing is handed in twice"
        assert facts.making is None
        assert facts.newest != "final", "one final submission a round"
    if move is Move.DELIVER:
        assert facts.delivering is None
    if move in (Move.SETTLE, Move.BEGIN, Move.RESTREAM, Move.TRAIN):
        assert not facts.draining
    if facts.draining and facts.hurry:
        assert move is Move.LEAVE
    if move is Move.LEAVE:
        assert facts.draining
    if overlap and facts.base is not None and not facts.draining:
        wanted = not facts.sated and not (facts.idle and facts.open_round is None)
        assert move is not Move.REST or not wanted, "training does not stop while it can be of use"


def test_deadlines_follow_the_spec_and_the_notice() -> None:
    times = Deadlines.of(tiny_spec(), DEFAULT_NOTICE_S)
    assert (times.drip_s, times.submit_s) == (tiny_spec().round.drip_s, tiny_spec().round.submit_deadline_s)
    assert times.hurry_s + times.leave_s == times.notice_s
    assert times.leave_s > timeouts.GOODBYE_S
    assert times.needed_s(10.0) == UPLOAD_SAFETY * 10.0
    assert times.drip_every_s(None) == times.drip_s
    assert times.drip_every_s(30.0) == 30.0 / BUSY_SHARE


@pytest.mark.parametrize("notice_s", [0.0, LEAST_NOTICE_S - 0.1, 1e9, float("nan")])
def test_a_notice_that_is_none_is_refused(notice_s: float) -> None:
    with pytest.raises(ValueError, match="a notice is"):
        Deadlines.of(tiny_spec(), notice_s)


def test_the_notice_of_brigade_up_is_long_enough() -> None:
    Deadlines.of(tiny_spec(), timeouts.ROLE_STOP_S)


@pytest.mark.parametrize("lacking", [{"ready": False}, {"held": None}, {}])
def test_who_has_not_begun_waits_while_the_run_stands_still(lacking: dict[str, None]) -> None:
    facts = replace(READY, stalled="the storage does not answer", **lacking)  # type: ignore[arg-type]  # by name
    move, reason = decide(facts, TIMES, overlap=True)
    assert move in (Move.REST, Move.SETTLE)
    assert move is Move.SETTLE or "the storage does not answer" in reason
    assert decide(replace(facts, stalled=""), TIMES, overlap=True)[0] in (Move.FETCH, Move.SYNC, Move.BEGIN)


def test_who_joins_asks_the_leader_before_it_fetches() -> None:
    joining = replace(READY, ready=False, held=None, asking=True)
    assert decide(joining, TIMES, overlap=True) == (Move.REST, "asking the leader whether the run goes on")
    assert decide(replace(joining, asking=False), TIMES, overlap=True)[0] is Move.FETCH


def test_a_miner_at_work_goes_on_while_the_run_stands_still() -> None:
    assert decide(replace(WORKING, stalled="paused"), TIMES, overlap=True)[0] is Move.TRAIN
