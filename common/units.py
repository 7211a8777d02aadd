"""Named scalar types and the formatting of quantities for people.

The NewTypes exist so that a round can't be passed where a revision is meant; they cost nothing at run time.
"""

from __future__ import annotations

import hashlib
from typing import NewType

Hotkey = NewType("Hotkey", str)  # SS58 address of a hotkey
Coldkey = NewType("Coldkey", str)  # SS58 address of a coldkey
Uid = NewType("Uid", int)  # slot of a hotkey on the subnet, 0..255; reused by the chain, so never a key of history
RoundId = NewType("RoundId", int)
Revision = NewType("Revision", int)
ShardId = NewType("ShardId", int)
Sha256 = NewType("Sha256", str)  # 64 lowercase hex digits

SHA256_PATTERN = r"^[0-9a-f]{64}$"


def sha256_hex(data: bytes | memoryview) -> Sha256:
    """The SHA-256 of ``data`` as 64 lowercase hex digits."""
    return Sha256(hashlib.sha256(data).hexdigest())


def is_hex(text: str, digits: int) -> bool:
    """Whether ``text`` is exactly so many lowercase hex digits."""
    return len(text) == digits and not text.strip("0123456789abcdef")


def is_sha256(text: str) -> bool:
    """Whether ``text`` is 64 lowercase hex digits."""
    return is_hex(text, 64)


def check_sha256(text: str) -> None:
    """Raise ValueError unless ``text`` is 64 lowercase hex digits."""
    if not is_sha256(text):
        raise ValueError("a SHA-256 is 64 lowercase hex digits")


def printable(text: str) -> str:
    """A stranger's text as a terminal or a log may show it: one line, without control or invisible characters."""
    return "".join(c if c.isprintable() else "�" for c in text)


def format_bytes(size_bytes: float) -> str:
    """``1536`` → ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


def format_rate(rate_bps: float) -> str:
    """Bits per second for people: ``12_500_000`` → ``12.5 Mbit/s``."""
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if abs(rate_bps) < 1000 or unit == "Mbit/s":
            return f"{rate_bps:.1f} {unit}"
        rate_bps /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """``75`` → ``1m15s``."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
