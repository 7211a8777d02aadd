"""Which network an observed address belongs to: the /24 or /48, and the ASN where a table tells. Pure.

Addresses are those that the validator's own TCP connections show, never what a miner says. Of a loopback address no
network is known: the peer, or the proxy in front of us, is on our own machine, and every miner would look the same.

An IPv4 address that comes as one of IPv6, mapped (a socket that takes both) or translated by NAT64, is that IPv4
address wherever it stands: in a connection, and in a line of the table.
"""

from __future__ import annotations

import ipaddress
import math
from bisect import bisect_right
from dataclasses import dataclass

from common.errors import OperatorError

IPV4_BITS, IPV6_BITS = 24, 48
MAX_ASN = (1 << 32) - 1
MAX_TABLE_LINES = 2_000_000
IPV4_WITHIN = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv6 prefixes that hold all of IPv4 in their last 32 bits: RFC 4291 2.5.5.2, RFC 6052 2.1."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Range = tuple[int, int]
"""First address, and the end with its sign changed: in order, what holds others comes before them."""


def network_of(host: str) -> str | None:
    """The /24 or /48 of a peer's address; None for what is none or tells nothing."""
    address = address_of(host)
    if address is None or address.is_loopback or address.is_unspecified:
        return None
    bits = IPV4_BITS if address.version == 4 else IPV6_BITS
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


@dataclass(frozen=True)
class AsnTable:
    """Prefixes and their autonomous systems; the longest prefix that holds an address counts."""

    starts: tuple[int, ...] = ()
    """First address of each range, as ``_place`` has it, in order; ranges do not overlap."""
    asns: tuple[int | None, ...] = ()

    def asn_of(self, host: str) -> int | None:
        """The ASN of an address, or None when the table does not tell."""
        address = address_of(host)
        if address is None:
            return None
        at = bisect_right(self.starts, _place(address)) - 1
        return self.asns[at] if at >= 0 else None


NO_TABLE = AsnTable()
"""Tells nothing of anybody."""


def parse_asn_table(text: str, name: str) -> AsnTable:
    """A table of lines "prefix asn", ``#`` begins a comment. OperatorError names the line that is none."""
    prefixes: dict[_Range, int] = {}
    lines = text.splitlines()
    if len(lines) > MAX_TABLE_LINES:
        raise OperatorError(f"{name} has {len(lines)} lines; at most {MAX_TABLE_LINES} are read")
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            prefix, asn = words
            value = _asn(asn)
            network = _network(prefix)
        except ValueError:
            raise OperatorError(
                f'{name} line {number}: not "prefix asn", as in 192.0.2.0/24 64496: correct the line or leave it out'
            ) from None
        if not 0 < value <= MAX_ASN:
            raise OperatorError(f"{name} line {number}: {value} is no ASN, which is between 1 and {MAX_ASN}")
        first = _place(network.network_address)
        prefixes[first, -(first + network.num_addresses)] = value
    return _flattened(prefixes)


def _asn(text: str) -> int:
    digits = text.upper().removeprefix("AS")
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{text!r} is no number")  # int() would take 64_496 and other alphabets' digits
    return int(digits)


def _network(text: str) -> _Network:
    network = ipaddress.ip_network(text)
    if isinstance(network, ipaddress.IPv6Network) and any(network.subnet_of(within) for within in IPV4_WITHIN):
        return ipaddress.IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def _place(address: _Address) -> int:
    """One number for every address: those of version 6 lie behind those of version 4."""
    return int(address) if address.version == 4 else (1 << 32) + int(address)


def _flattened(prefixes: dict[_Range, int]) -> AsnTable:
    """Nested prefixes as ranges that do not overlap: at each border the innermost that is open counts."""
    starts: dict[int, int | None] = {}
    open_: list[tuple[int, int]] = []
    """End and ASN, the innermost last."""

    def close_until(place: float) -> None:
        while open_ and open_[-1][0] <= place:
            end, _ = open_.pop()
            starts[end] = open_[-1][1] if open_ else None

    for first, end in sorted(prefixes):
        close_until(first)
        starts[first] = prefixes[first, end]
        open_.append((-end, prefixes[first, end]))
    close_until(math.inf)
    keys = sorted(starts)
    return AsnTable(tuple(keys), tuple(starts[key] for key in keys))


def address_of(host: str) -> _Address | None:
    """A peer's address, of version 4 where that is what it stands for; None for a text that is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and any(address in within for within in IPV4_WITHIN):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
