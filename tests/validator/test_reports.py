"""Reports in the bucket: one reader for everybody, and nothing in them that would spoil a start."""

from __future__ import annotations

import dataclasses
import math

import pytest

from common import keys
from common.errors import Rejected, Retryable
from common.reports import Report, sign_report
from common.store.memory import MemoryStore
from common.store.port import ObjectMissing
from common.units import Revision, RoundId, Sha256, Uid
from tests.support.specs import OWNER, VALIDATOR, tiny_spec
from validator.bars import LONGEST_ROUNDS, MOST_LATENESS, NO_BAR, Bar
from validator.ledger import Account, Totals
from validator.scoring.policy import Drops, Work, score_round
from validator.scoring.reports import Books, Outcome, barred, find_reports, make_report, read_reports, write_report

SPEC = tiny_spec()
ME = VALIDATOR.hotkey


def report(round_id: int, loss: float = 2.0) -> Report:
    return Report(1, "demo", ME, RoundId(round_id), Revision(round_id + 1), True, 3.0, loss, ())


def test_reports_come_by_round_and_of_two_the_one_whose_key_sorts_first() -> None:
    store = MemoryStore()
    written = {write_report(store, report(2, loss), VALIDATOR): loss for loss in (2.0, 2.5, 1.5)}
    write_report(store, report(11), VALIDATOR)
    found = read_reports(store, SPEC, ME)
    assert [one.round for one in found] == [2, 11]
    assert found[0].heldout_loss == written[min(written)]
    newest = find_reports(store, "demo", ME).newest
    assert newest is not None
    assert newest.round == 11


@pytest.mark.parametrize(
    "bar",
    [NO_BAR, Bar(20, "wrong_mean"), Bar(9, "late", 16, 8), Bar(0, "", 0, 8), Bar(9, "", 8)],
    ids=["none", "lie", "late", "left", "unknown"],
)
def test_a_report_keeps_who_gets_no_duties_and_why(bar: Bar) -> None:
    work = Work(OWNER.hotkey, Uid(3), 1, "absent")
    scores = score_round([work], {}, True, 8, {}, 1.0)
    books = {OWNER.hotkey: Books(Totals(), Account(), 0.0, 0.0, bar)}
    store, outcome = MemoryStore(), Outcome(RoundId(5), Revision(6), True, 3.0, 2.0)
    write_report(store, make_report("demo", ME, outcome, scores, books), VALIDATOR)
    (read,) = read_reports(store, SPEC, ME)
    assert barred(read) == ({} if bar == NO_BAR else {OWNER.hotkey: bar})


def test_a_foreign_report_bars_nobody_for_ever() -> None:
    work = Work(OWNER.hotkey, Uid(3), 1, "absent")
    books = {OWNER.hotkey: Books(Totals(), Account(), 0.0, 0.0, Bar(10**9, "late", 10**9, -5))}
    outcome = Outcome(RoundId(5), Revision(6), True, 3.0, 2.0)
    made = make_report("demo", ME, outcome, score_round([work], {}, True, 8, {}, 1.0), books)
    assert barred(made) == {OWNER.hotkey: Bar(6 + LONGEST_ROUNDS, "late", MOST_LATENESS, 0)}


def test_a_report_of_a_round_that_is_not_its_keys_or_has_not_been_is_not_gone_by() -> None:
    """Else who led once bars all miners but its own for as long as it likes."""
    store = MemoryStore()
    write_report(store, report(2), VALIDATOR)
    far = sign_report(report(10**9), VALIDATOR).encode()
    store.put(keys.report_key("demo", ME, RoundId(3), Sha256("2" * 64)), far)
    assert [one.round for one in read_reports(store, SPEC, ME)] == [2]
    write_report(store, report(10**9), VALIDATOR)
    write_report(store, report(4), VALIDATOR)
    newest = find_reports(store, "demo", ME, before=RoundId(4)).newest
    assert newest is not None
    assert newest.round == 2


def test_a_bar_in_a_report_of_before_there_were_reasons_is_for_a_wrong_mean() -> None:
    work = Work(OWNER.hotkey, Uid(3), 1, "absent")
    outcome = Outcome(RoundId(5), Revision(6), True, 3.0, 2.0)
    made = make_report("demo", ME, outcome, score_round([work], {}, True, 8, {}, 1.0), {})
    old = dataclasses.replace(made, members=(dataclasses.replace(made.members[0], barred_until=20),))
    assert barred(old) == {OWNER.hotkey: Bar(20, "wrong_mean")}


def test_bytes_that_are_no_report_give_way_to_the_next() -> None:
    store = MemoryStore()
    key = write_report(store, report(2), VALIDATOR)
    store.put(keys.report_key("demo", ME, RoundId(2), Sha256("0" * 64)), b"garbage")
    foreign = sign_report(dataclasses.replace(report(3), signer=OWNER.hotkey), OWNER).encode()
    store.put(keys.report_key("demo", ME, RoundId(3), Sha256("1" * 64)), foreign)
    assert [one.round for one in read_reports(store, SPEC, ME)] == [2]
    assert find_reports(store, "demo", ME).newest == read_reports(store, SPEC, ME)[0]
    assert key


def test_a_report_that_vanishes_after_the_listing_does_not_stop_the_start() -> None:
    store = MemoryStore()
    write_report(store, report(1), VALIDATOR)
    gone = write_report(store, report(2), VALIDATOR)

    def vanish(operation: str, key: str) -> None:
        if operation == "get" and key == gone:
            raise ObjectMissing(key)

    store.before = vanish
    newest = find_reports(store, "demo", ME).newest
    assert newest is not None
    assert newest.round == 1


def test_a_storage_that_refuses_is_waited_for_and_its_reports_are_not_given_up() -> None:
    store = MemoryStore()
    write_report(store, report(1), VALIDATOR)

    def refuse(operation: str, key: str) -> None:
        raise Rejected("access_denied", "the keys are being changed")

    store.before = refuse
    with pytest.raises(Retryable):
        find_reports(store, "demo", ME)
    with pytest.raises(Retryable):
        write_report(store, report(2), VALIDATOR)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e300])
def test_figures_that_are_not_finite_are_never_written(loss: float) -> None:
    store = MemoryStore()
    with pytest.raises(Rejected, match="not_finite"):
        write_report(store, report(1, loss), VALIDATOR)
    assert list(store.list("")) == []


def test_a_delta_with_an_infinite_loss_spoils_only_its_own_score() -> None:
    bad = Work(OWNER.hotkey, 1, 1, "accepted", tokens=10, drops=Drops((math.nan, -math.inf), (math.inf,)))  # type: ignore[arg-type]
    good = Work(ME, 2, 1, "accepted", tokens=10, drops=Drops((0.1,), (0.1,)))  # type: ignore[arg-type]
    scores = score_round([bad, good], {}, True, 5)
    assert all(math.isfinite(score.assigned_drop) and math.isfinite(score.unseen_drop) for score in scores)
    assert scores[0].round_score == 0.0
    assert scores[1].round_score == 10.0
