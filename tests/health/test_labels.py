"""Groups of machines: by what the validator sees, and by what miners say only where that can't be invented alone."""

from __future__ import annotations

from common.units import Hotkey
from validator.health.labels import Label, Place, groups, sites

SUBNET, ASN, GPU, PROVIDER = "subnet", "asn", "gpu", "provider"


def where(index: int, coldkey: str, **labels: str) -> tuple[Hotkey, Place]:
    observed = {SUBNET, ASN}
    return Hotkey(f"m{index}"), Place(coldkey, tuple(Label(w, v, w in observed) for w, v in sorted(labels.items())))


def names(places: dict[Hotkey, Place]) -> dict[str, int]:
    return {str(group): len(group.members) for group in groups(places)}


def test_labels_that_hold_for_the_same_machines_are_not_separable() -> None:
    places = dict(where(i, f"c{i}", subnet="a" if i < 4 else f"x{i}", asn="7" if i < 4 else "8") for i in range(8))
    assert names(places) == {"asn 7 (not separable from subnet a)": 4, "asn 8": 4}


def test_a_pair_with_a_declared_label_is_a_group_of_its_own() -> None:
    places = dict(where(i, f"c{i}", subnet="a" if i < 8 else "b", gpu="g1" if i % 2 else "g2") for i in range(16))
    assert names(places)["gpu g1 and subnet a"] == 4
    assert names(places)["subnet a"] == 8


def test_a_declared_label_needs_three_owners() -> None:
    places = dict(where(i, "one" if i < 6 else f"c{i}", provider="p" if i < 6 else "q") for i in range(12))
    assert names(places) == {"provider q": 6}


def test_two_machines_are_no_group_and_neither_is_everybody() -> None:
    places = dict(where(i, f"c{i}", subnet="a" if i < 2 else f"x{i}", asn="1") for i in range(6))
    assert names(places) == {}


def test_a_group_knows_whether_it_rests_on_what_miners_say() -> None:
    places = dict(where(i, f"c{i}", subnet="a" if i < 4 else f"x{i}", gpu="g" if 2 <= i < 7 else "h") for i in range(9))
    found = {str(group): group.observed for group in groups(places)}
    assert found == {"gpu g": False, "gpu h": False, "subnet a": True}


def test_a_site_is_the_smallest_observed_group_that_is_large_enough() -> None:
    places = dict(where(i, f"c{i}", subnet="a" if i < 6 else f"x{i}", asn="1", gpu="g") for i in range(12))
    assert set(sites(places).values()) == {"subnet a", "asn 1"}
