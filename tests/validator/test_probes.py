"""Which links are probed and what it shows, without wire or storage: the clock is the test's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import timeouts
from common.errors import Rejected
from common.probes import MAX_PROBE_BYTES, MIN_PROBE_BYTES
from common.units import Hotkey, Sha256
from common.wire import ProbeOrder, UploadTarget
from validator.health.evidence import Kind
from validator.probes import (
    FIRST_BYTES,
    MOST_AT_ONCE,
    MOST_BUSY,
    MOST_PREPARED,
    TRANSFERS,
    Outcome,
    Probe,
    Probes,
)

A, B = Hotkey("a" * 48), Hotkey("b" * 48)
TARGET = UploadTarget(url="http://storage/x", headers={}, expires_in_s=1.0)
ALL = [Hotkey(f"{number:048d}") for number in range(30)]


@dataclass
class Desk:
    """A leader's side, with heartbeats and answers as a test says."""

    probes: Probes = field(default_factory=Probes)
    now_s: float = 1000.0
    nonces: int = 0

    def want(self, *hotkeys: Hotkey, kind: Kind = Kind.UPLINK, confirm: bool = False) -> None:
        self.probes.want({kind: frozenset(hotkeys)}, self.now_s, confirm=confirm)

    def prepare(self) -> list[Probe]:
        drafts = self.probes.drafts(self.now_s)
        for probe in drafts:
            self.nonces += 1
            uplink = probe.kind is Kind.UPLINK
            order = ProbeOrder(
                nonce=f"{self.nonces:032x}",
                kind="uplink" if uplink else "downlink",
                size_bytes=probe.size_bytes,
                upload=TARGET if uplink else None,
                seconds_left=timeouts.PROBE_S,
            )
            self.probes.prepared(probe, order, None if uplink else Sha256("0" * 64), self.now_s)
        return drafts

    def beat(self, hotkey: Hotkey) -> ProbeOrder | None:
        return self.probes.order(hotkey, self.now_s)

    def order(self, hotkey: Hotkey) -> ProbeOrder | None:
        """Two heartbeats: by the first the leader knows that it lives."""
        found = self.beat(hotkey)
        if found is None:
            self.prepare()
            found = self.beat(hotkey)
        return found

    def transfer(self, hotkey: Hotkey, seconds: float, outcome: Outcome = Outcome.RIGHT) -> ProbeOrder:
        order = self.order(hotkey)
        assert order is not None
        self.now_s += seconds
        probe = self.probes.answer(hotkey, order.nonce, self.now_s)
        self.probes.end(probe, outcome, self.now_s)
        return order

    def pass_over(self, hotkey: Hotkey, beats: bool = True) -> None:
        """Order, and hear nothing until the time is over."""
        assert self.order(hotkey) is not None
        if beats:
            self.now_s += timeouts.PROBE_S / 2
            assert self.beat(hotkey) is None
        self.now_s += timeouts.PROBE_S
        for probe in self.probes.overdue(self.now_s):
            self.probes.end(probe, Outcome.SILENT, self.now_s)

    def rate(self, hotkey: Hotkey, kind: Kind = Kind.UPLINK) -> tuple[float, bool]:
        shown = self.probes.take()[kind][hotkey]
        return math.exp(shown.log_rate), shown.at_most


def test_the_rate_is_bytes_over_the_time_from_order_to_answer_and_the_middle_of_three() -> None:
    desk = Desk()
    desk.want(A)
    for seconds in (2.0, 16.0, 1.0):
        order = desk.transfer(A, seconds)
    assert order.size_bytes == FIRST_BYTES
    rate, at_most = desk.rate(A)
    assert rate == pytest.approx(FIRST_BYTES / 2.0)
    assert not at_most
    assert desk.probes.take() == {}
    assert desk.probes.wanted == 0
    assert desk.order(A) is None


def test_each_kind_is_wanted_and_shown_for_itself_and_compute_is_none() -> None:
    desk = Desk()
    desk.want(A)
    desk.want(A, kind=Kind.DOWNLINK)
    kinds = [desk.transfer(A, 1.0).kind for _ in range(2 * TRANSFERS)]
    assert sorted(kinds) == ["downlink"] * TRANSFERS + ["uplink"] * TRANSFERS
    assert {kind: set(shown) for kind, shown in desk.probes.take().items()} == {Kind.UPLINK: {A}, Kind.DOWNLINK: {A}}
    with pytest.raises(ValueError, match="compute can't be probed"):
        desk.want(A, kind=Kind.COMPUTE)


def test_nobody_is_ordered_anything_that_is_not_wanted_or_before_it_is_prepared() -> None:
    desk = Desk()
    desk.want(A)
    assert desk.order(B) is None
    assert desk.beat(A) is None
    (probe,) = desk.probes.drafts(desk.now_s)
    assert desk.beat(A) is None
    desk.probes.failed(probe, desk.now_s)
    assert desk.order(A) is None
    desk.now_s += timeouts.PROBE_AGAIN_S
    assert desk.order(A) is not None
    assert desk.order(A) is None


def test_a_miner_that_sends_no_heartbeats_takes_no_place() -> None:
    desk = Desk()
    desk.want(*ALL)
    assert desk.prepare() == []
    assert desk.order(ALL[-1]) is not None
    desk.now_s += timeouts.PROBE_WANT_S + 1
    desk.beat(ALL[-1])
    desk.prepare()
    assert desk.probes.wanted <= 1


def test_a_few_are_under_way_at_once_and_the_others_wait_for_their_turn() -> None:
    desk = Desk()
    desk.want(*ALL)
    for hotkey in ALL:
        assert desk.beat(hotkey) is None
    assert len(desk.prepare()) == MOST_PREPARED
    assert desk.prepare() == []
    under_way = {hotkey: order for hotkey in ALL if (order := desk.beat(hotkey))}
    assert len(under_way) == MOST_AT_ONCE
    done: set[Hotkey] = set()
    for _ in range(40 * TRANSFERS):
        desk.now_s += 1.0
        for hotkey, order in under_way.items():
            desk.probes.end(desk.probes.answer(hotkey, order.nonce, desk.now_s), Outcome.RIGHT, desk.now_s)
        done |= under_way.keys()
        desk.prepare()
        under_way = {hotkey: order for hotkey in ALL if (order := desk.beat(hotkey))}
        assert len(under_way) <= MOST_AT_ONCE
    assert done == set(ALL)
    assert set(desk.probes.take()[Kind.UPLINK]) == set(ALL)


def test_what_is_prepared_and_never_fetched_makes_room() -> None:
    desk = Desk()
    desk.want(*ALL[:MOST_PREPARED])
    for hotkey in ALL[:MOST_PREPARED]:
        desk.beat(hotkey)
    desk.prepare()
    desk.now_s += timeouts.PROBE_KEEP_S + 1
    assert desk.beat(ALL[0]) is None, "its URL may not live long enough"
    desk.want(B)
    assert desk.order(B) is not None


def test_between_two_probes_of_a_miner_is_a_rest_unless_one_confirms_the_other() -> None:
    desk = Desk()
    desk.want(A)
    for _ in range(TRANSFERS):
        desk.transfer(A, 1.0)
    desk.want(A)
    assert desk.order(A) is None
    desk.now_s += timeouts.PROBE_REST_S
    for _ in range(TRANSFERS):
        desk.transfer(A, 1.0)
    desk.want(A)
    assert desk.order(A) is None
    desk.want(A, confirm=True)
    assert desk.order(A) is not None


def test_no_answer_in_time_is_a_bound_of_a_miner_that_has_answered_before() -> None:
    desk = Desk()
    desk.want(A)
    desk.transfer(A, 1.0)
    desk.probes.take()
    desk.pass_over(A)
    rate, at_most = desk.rate(A)
    assert rate == pytest.approx(FIRST_BYTES / timeouts.PROBE_S)
    assert at_most


def test_one_silence_among_three_transfers_decides_nothing() -> None:
    desk = Desk()
    desk.want(A)
    desk.transfer(A, 1.0)
    desk.pass_over(A)
    desk.transfer(A, 1.0)
    assert desk.rate(A)[0] == pytest.approx(FIRST_BYTES)


def test_silence_of_a_miner_that_never_answered_shows_nothing_and_it_is_asked_ever_less() -> None:
    desk = Desk()
    waits = []
    for _ in range(4):
        desk.want(A, confirm=True)
        began_s = desk.now_s
        while desk.order(A) is None:
            desk.now_s += 10.0
            desk.want(A, confirm=True)
        waits.append(desk.now_s - began_s)
        desk.beat(A)
        desk.now_s += timeouts.PROBE_S + 1
        for probe in desk.probes.overdue(desk.now_s):
            desk.probes.end(probe, Outcome.SILENT, desk.now_s)
        assert desk.probes.wanted == 0
    assert desk.probes.take() == {}
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] > 3 * waits[1] > 0


def test_a_miner_that_is_gone_is_no_slow_one() -> None:
    desk = Desk()
    desk.want(A)
    desk.transfer(A, 1.0)
    desk.probes.take()
    desk.pass_over(A, beats=False)
    assert desk.probes.take() == {}


def test_a_wrong_answer_counts_as_none_and_shows_that_the_miner_knows_probes() -> None:
    desk = Desk()
    desk.want(A)
    desk.transfer(A, 0.01, Outcome.WRONG)
    rate, at_most = desk.rate(A)
    assert rate == pytest.approx(FIRST_BYTES / timeouts.PROBE_S)
    assert at_most


def test_a_busy_link_shows_nothing_and_is_asked_again_a_bounded_number_of_times() -> None:
    desk = Desk()
    desk.want(A)
    for _ in range(MOST_BUSY - 1):
        desk.transfer(A, 0.1, Outcome.BUSY)
        assert desk.order(A) is None
        desk.now_s += timeouts.PROBE_AGAIN_S
    assert desk.probes.take() == {}
    desk.transfer(A, 1.0)
    assert not desk.rate(A)[1]
    for _ in range(MOST_BUSY):
        desk.transfer(A, 0.1, Outcome.BUSY)
        desk.now_s += timeouts.PROBE_AGAIN_S
    assert desk.probes.wanted == 0
    assert desk.probes.take() == {}


def test_what_passed_while_nobody_could_answer_shows_nothing_and_is_made_again() -> None:
    desk = Desk()
    desk.want(A)
    first = desk.order(A)
    assert first is not None
    desk.probes.void(desk.now_s)
    with pytest.raises(Rejected, match="not_asked"):
        desk.probes.answer(A, first.nonce, desk.now_s)
    desk.now_s += timeouts.PROBE_AGAIN_S
    for _ in range(TRANSFERS):
        desk.transfer(A, 1.0)
    rate, at_most = desk.rate(A)
    assert rate == pytest.approx(FIRST_BYTES)
    assert not at_most


def test_only_the_asked_hotkey_answers_its_own_nonce_once_and_in_time() -> None:
    desk = Desk()
    desk.want(A, B)
    ours, theirs = desk.order(A), desk.order(B)
    assert ours is not None
    assert theirs is not None
    desk.now_s += 1.0
    for hotkey, nonce in ((A, theirs.nonce), (B, ours.nonce), (A, "0" * 32), (ALL[0], ours.nonce)):
        with pytest.raises(Rejected, match="not_asked"):
            desk.probes.answer(hotkey, nonce, desk.now_s)
    probe = desk.probes.answer(A, ours.nonce, desk.now_s)
    with pytest.raises(Rejected, match="not_asked"):
        desk.probes.answer(A, ours.nonce, desk.now_s)
    desk.probes.end(probe, Outcome.RIGHT, desk.now_s)
    second = desk.order(A)
    assert second is not None
    with pytest.raises(Rejected, match="not_asked"):
        desk.probes.answer(A, ours.nonce, desk.now_s)
    desk.now_s += timeouts.PROBE_S + 1
    with pytest.raises(Rejected, match="allowed"):
        desk.probes.answer(A, second.nonce, desk.now_s)


def test_a_transfer_takes_about_a_second_within_bounds_and_grows_back_at_once() -> None:
    for rate, size in ((10.0, MIN_PROBE_BYTES), (3e5, 1 << 18), (1e9, MAX_PROBE_BYTES)):
        desk = Desk(Probes(lambda kind, hotkey, rate=rate: rate))  # type: ignore[misc]
        desk.want(A)
        order = desk.order(A)
        assert order is not None
        assert order.size_bytes == size
    desk, sizes = Desk(), list[int]()
    for seconds in (0.25, 15.0, 15.0, 15.0, 0.25, 0.25):
        desk.want(A, confirm=True)
        made = {desk.transfer(A, seconds).size_bytes for _ in range(TRANSFERS)}
        assert len(made) == 1
        sizes += made
    assert sizes[:3] == [FIRST_BYTES, MAX_PROBE_BYTES, MAX_PROBE_BYTES // 2]
    assert sizes[2] > sizes[3] > sizes[4] < sizes[5]


def test_who_leads_no_more_forgets() -> None:
    desk = Desk()
    desk.want(A, B)
    desk.transfer(A, 1.0)
    order = desk.order(A)
    desk.probes.drop()
    assert (desk.probes.take(), desk.probes.wanted, desk.order(A)) == ({}, 0, None)
    assert order is not None
    with pytest.raises(Rejected, match="not_asked"):
        desk.probes.answer(A, order.nonce, desk.now_s)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["want", "confirm", "beat", "answer", "overdue", "void", "drop", "take", "prepare"]),
            st.integers(0, 5),
            st.sampled_from(list(Outcome)),
            st.floats(0, 40),
        ),
        max_size=80,
    )
)
def test_in_any_order_of_events_the_bounds_hold(events: list[tuple[str, int, Outcome, float]]) -> None:
    desk, orders = Desk(), dict[Hotkey, ProbeOrder]()
    for what, number, outcome, wait_s in events:
        hotkey = ALL[number]
        desk.now_s += wait_s
        if what in ("want", "confirm"):
            kind = Kind.UPLINK if number % 2 else Kind.DOWNLINK
            desk.want(hotkey, ALL[(number + 1) % 6], kind=kind, confirm=what == "confirm")
        elif what == "beat":
            order = desk.beat(hotkey)
            if order is not None:
                assert order.nonce not in {old.nonce for old in orders.values()}
                orders[hotkey] = order
        elif what == "answer" and hotkey in orders:
            try:
                probe = desk.probes.answer(hotkey, orders[hotkey].nonce, desk.now_s)
            except Rejected:
                continue
            desk.probes.end(probe, outcome, desk.now_s)
        elif what == "overdue":
            for probe in desk.probes.overdue(desk.now_s):
                desk.probes.end(probe, Outcome.SILENT, desk.now_s)
        elif what == "prepare":
            desk.prepare()
        elif what == "void":
            desk.probes.void(desk.now_s)
        elif what == "drop":
            desk.probes.drop()
        for shown in desk.probes.take().values():
            for found in shown.values():
                assert math.isfinite(found.log_rate)
        current = desk.probes._current.values()
        assert sum(probe.ordered for probe in current) <= MOST_AT_ONCE
        assert sum(not probe.ordered for probe in current) <= MOST_PREPARED
        assert desk.probes.wanted <= 12
