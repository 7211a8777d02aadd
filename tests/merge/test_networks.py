"""Observed addresses and their networks; the operator's table of autonomous systems."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import OperatorError
from common.merge.networks import network_of, parse_asn_table

TABLE = """
# prefix asn
192.0.2.0/24 64496
192.0.0.0/16 AS64497   # the provider
192.0.2.128/25 64498
2001:db8::/32 64499
"""


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("::ffff:c000:24d", "192.0.2.0/24"),
        ("64:ff9b::192.0.2.77", "192.0.2.0/24"),
        ("::ffff:127.0.0.1", None),
        ("::ffff:0.0.0.0", None),
        ("fe80::1%eth0", "fe80::/48"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("127.0.0.1", None),
        ("::1", None),
        ("", None),
        ("miner.example", None),
    ],
)
def test_an_address_has_a_network(host: str, network: str | None) -> None:
    assert network_of(host) == network


@pytest.mark.parametrize(
    ("host", "asn"),
    [
        ("192.0.2.1", 64496),
        ("192.0.2.129", 64498),
        ("192.0.3.1", 64497),
        ("192.1.0.0", None),
        ("1.1.1.1", None),
        ("2001:db8::1", 64499),
        ("2001:db9::", None),
        ("::1", None),
        ("nowhere", None),
    ],
)
def test_the_longest_prefix_tells_the_asn(host: str, asn: int | None) -> None:
    assert parse_asn_table(TABLE, "asn.txt").asn_of(host) == asn


prefixes = st.builds(
    lambda address, bits: ipaddress.ip_network((address, bits), strict=False), st.integers(0, 1023), st.integers(22, 32)
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(prefixes, st.integers(1, 9), max_size=8), st.integers(0, 1100))
def test_any_nesting_is_looked_up_right(table: dict[ipaddress.IPv4Network, int], number: int) -> None:
    address = ipaddress.IPv4Address(number)
    holding = [prefix for prefix in table if address in prefix]
    expected = table[max(holding, key=lambda prefix: prefix.prefixlen)] if holding else None
    text = "\n".join(f"{prefix} {asn}" for prefix, asn in table.items())
    assert parse_asn_table(text, "t").asn_of(str(address)) == expected


@pytest.mark.parametrize(
    "prefix", ["192.0.2.0/24", "::ffff:192.0.2.0/120", "::ffff:c000:200/120", "64:ff9b::c000:200/120"]
)
@pytest.mark.parametrize("host", ["192.0.2.7", "::ffff:192.0.2.7", "::ffff:c000:207", "64:ff9b::192.0.2.7"])
def test_an_ipv4_address_is_the_same_in_every_form(prefix: str, host: str) -> None:
    table = parse_asn_table(f"192.0.0.0/16 1\n{prefix} 64496\n::/0 2", "t")
    assert table.asn_of(host) == 64496
    assert table.asn_of("192.0.3.1") == 1
    assert table.asn_of("2001:db8::1") == 2


@pytest.mark.parametrize(
    "line",
    [
        "192.0.2.0/24",
        "192.0.2.1/24 5",
        "x y",
        "192.0.2.0/24 0",
        "192.0.2.0/24 AS0",
        "::ffff:192.0.2.0/120 0",
        "::ffff:192.0.2.1/120 5",
        "192.0.2.0/24 64_496",
        "192.0.2.0/24 -5",
        "192.0.2.0/24 ٣",
        "10.0.0.0/8 99999999999",
        f"10.0.0.0/8 {'9' * 5000}",
    ],
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(OperatorError, match=r"asn\.txt line 2"):
        parse_asn_table(f"# a table\n{line}", "asn.txt")
