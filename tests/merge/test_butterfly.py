"""Placement and judgement of the butterfly: independent owners, even loads, and nobody named for another's fault."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.merge.butterfly import (
    MOST_LOAD,
    Candidate,
    Duty,
    are_related,
    audited,
    findings_of,
    must_compute,
    place,
    placement_seed,
)
from common.units import Coldkey, Hotkey, Sha256, sha256_hex

SEED = placement_seed(Sha256("1" * 64), "0x" + "2" * 64)
A, B = (Hotkey(name) for name in "AB")
TRUE, LIE = sha256_hex(b"true"), sha256_hex(b"lie")


def people(count: int, owners: int = 0, networks: int = 0) -> list[Candidate]:
    """``count`` miners that share so many coldkeys and networks; 0: each has its own."""
    return [
        Candidate(Hotkey(f"hot{i}"), Coldkey(f"cold{i % (owners or count)}"), f"10.{i % (networks or count)}.0.0/24")
        for i in range(count)
    ]


groups = st.builds(people, st.integers(1, 24), st.integers(0, 6), st.integers(0, 6))


@settings(max_examples=150, deadline=None)
@given(groups, st.integers(1, 40), st.integers(2, 4), st.binary(min_size=32, max_size=32))
def test_every_partition_has_different_owners_and_says_when_they_are_related(
    miners: list[Candidate], partitions: int, redundancy: int, seed: bytes
) -> None:
    known = {miner.hotkey: miner for miner in miners}
    duties = place(seed, miners, partitions, redundancy)
    assert [duty.partition for duty in duties] == list(range(partitions))
    for duty in duties:
        assert len(set(duty.owners)) == len(duty.owners) <= redundancy
        pairs = combinations((known[owner] for owner in duty.owners), 2)
        independent = len(duty.owners) == redundancy and not any(are_related(*pair) for pair in pairs)
        assert duty.related == (not independent)
    assert place(seed, list(reversed(miners)), partitions, redundancy) == duties
    load = Counter(owner for duty in duties for owner in duty.owners)
    assert max(load.values()) <= MOST_LOAD * -(-partitions * redundancy // len(miners)) + 1


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_strangers_carry_the_same(count: int) -> None:
    duties = place(SEED, people(count), 256, 2)
    load = Counter(owner for duty in duties for owner in duty.owners)
    assert not any(duty.related for duty in duties)
    assert len(load) == count
    assert max(load.values()) - min(load.values()) <= 1


def test_a_plan_or_a_block_of_its_own_deals_anew() -> None:
    other = placement_seed(Sha256("1" * 64), "0x" + "3" * 64)
    assert place(SEED, people(10), 32, 2) != place(other, people(10), 32, 2)
    assert place(SEED, people(10), 32, 2) != place(SEED, people(10), 32, 2, shard=1)


@pytest.mark.parametrize("asns", [(1, 1), (None, None), (None, 1)])
def test_only_what_is_known_relates(asns: tuple[int | None, int | None]) -> None:
    one, other = (Candidate(Hotkey(f"h{i}"), Coldkey(f"c{i}"), None, asn) for i, asn in enumerate(asns))
    assert are_related(one, other) == (asns == (1, 1))


def test_nobody_there_leaves_all_to_the_leader() -> None:
    assert place(SEED, [], 3, 2) == tuple(Duty(partition, (), True) for partition in range(3))
    assert must_compute(place(SEED, [], 1, 2)[0], {}) == "no owners"


def test_audits_are_as_many_as_asked_for_and_hang_on_the_seed() -> None:
    assert len(audited(SEED, 16, 4)) == 4
    assert audited(SEED, 16, 16) == frozenset(range(16))
    assert audited(SEED, 64, 8) != audited(b"another", 64, 8)


def test_copies_that_agree_need_no_leader() -> None:
    duty = Duty(0, (A, B), related=False)
    assert must_compute(duty, {A: TRUE, B: TRUE}) == ""
    assert must_compute(duty, {A: TRUE, B: LIE}) == "copies that differ"
    assert must_compute(duty, {A: TRUE}) == "a late owner"
    assert must_compute(Duty(0, (A, B), related=True), {A: TRUE, B: TRUE}) == "related owners"


def test_a_liar_is_named_with_both_hashes_and_its_partner_is_not() -> None:
    found = findings_of([Duty(7, (A, B), related=False)], {7: {A: TRUE, B: LIE}}, {7: TRUE})
    assert [(f.hotkey, f.code, f.partition, f.found, f.computed) for f in found] == [(B, "wrong_mean", 7, LIE, TRUE)]


def test_owners_that_lie_alike_are_both_named_once_the_leader_computes() -> None:
    copies = {0: {A: LIE, B: LIE}}
    duties = [Duty(0, (A, B), related=False)]
    assert {f.hotkey for f in findings_of(duties, copies, {0: TRUE})} == {A, B}
    assert findings_of(duties, copies, {}) == ()


def test_whoever_is_late_is_no_liar() -> None:
    found = findings_of([Duty(0, (A, B), related=False)], {0: {A: TRUE}}, {0: TRUE})
    assert [(f.hotkey, f.code, f.found) for f in found] == [(B, "late", None)]
