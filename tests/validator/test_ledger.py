"""A miner's growth through kills of either side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from validator.ledger import Account, Totals, observe, restored, settle


def test_a_new_process_counts_from_zero_and_the_old_ones_growth_is_kept() -> None:
    account = observe(Account(), "one", Totals(100, 10.0, 20.0))
    account = observe(account, "two", Totals(30, 3.0, 5.0))
    assert account.growth() == Totals(130, 13.0, 25.0)


def test_a_restarted_validator_goes_on_from_its_report() -> None:
    account = observe(restored("one", Totals(100, 10.0, 20.0)), "one", Totals(150, 15.0, 30.0))
    assert account.growth() == Totals(50, 5.0, 10.0)
    account = observe(restored("one", Totals(100, 10.0, 20.0)), "two", Totals(40, 4.0, 8.0))
    assert account.growth() == Totals(40, 4.0, 8.0)


def test_counters_that_go_back_take_nothing_away() -> None:
    account = observe(Account(), "one", Totals(100, 10.0, 20.0))
    assert observe(account, "one", Totals(50, 5.0, 10.0)).growth().tokens == 100


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100), st.booleans()), max_size=30))
def test_reports_hold_every_token_once(events: list[tuple[str, int, bool]]) -> None:
    """Whatever the order of heartbeats, new processes and reports that are stored late: nothing is lost or doubled."""
    account, trained, reported, session, counter, pending = Account(), 0, 0, 0, 0, None
    for kind, tokens, report in events:
        if kind == "b":
            session, counter = session + 1, 0
        counter, trained = counter + tokens, trained + tokens
        account = observe(account, str(session), Totals(counter))
        if pending is not None:
            reported += pending.growth().tokens
            account, pending = settle(account, pending), None
        if report:
            pending = account
    assert reported + account.growth().tokens == trained
