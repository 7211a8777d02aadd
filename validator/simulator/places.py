"""Where simulated machines stand: their addresses, and the autonomous systems that these belong to. Pure."""

from __future__ import annotations

from validator.simulator.settings import Settings

FIRST_ASN = 64512
"""Of those that nobody owns (RFC 6996)."""


def host_of(settings: Settings, index: int) -> str:
    """A miner's address: those of a group share a /24, others have each their own."""
    place, number = (index % settings.groups, index // settings.groups) if settings.groups else (index, 0)
    return f"{10 + (place >> 16)}.{(place >> 8) & 255}.{place & 255}.{1 + number % 254}"


def asn_of(settings: Settings, host: str) -> int | None:
    """The ASN of a machine's address; None: no table is given, or nothing is known of the address."""
    if not settings.asns or not host:
        return None
    high, middle, low, _ = (int(part) for part in host.split("."))
    return FIRST_ASN + ((high - 10 << 16) + (middle << 8) + low) % settings.asns
