"""A log's head as a validator commits it on chain under its own hotkey: one or two Raw fields. Pure.

    1. ``brigade/1 head <run> <seq> `` and the 32 raw bytes of the SHA-256 of slot ``seq``
    2. the address where the validator keeps its reports; left out when it has none that fits

A history rewritten later contradicts it, and a tail that is cut off falls short of it (``runlog/headproof.py``).
``decode`` is total: whatever a stranger wrote gives a head or ``Rejected('bad_commitment')``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from common.chain.port import MAX_COMMITMENT_FIELD_BYTES
from common.errors import Rejected
from common.units import Sha256, is_sha256

TAG = b"brigade/1 head "
_HEAD = re.compile(rb"([a-z0-9-]{1,48}) (0|[1-9][0-9]{0,11}) (.{32})", re.DOTALL)
_RUN = re.compile(r"[a-z0-9-]{1,48}")
_ADDRESS = re.compile(r"https?://[\x21-\x7e]{1,120}")
MAX_SEQ = 10**12


@dataclass(frozen=True)
class CommittedHead:
    """What a validator says of a run's log."""

    run: str
    seq: int
    """The last slot that it had read and found right."""
    slot_sha256: Sha256
    """Hash of that slot's bytes, which name the slot before by its hash, and so on."""
    reports: str = ""
    """Where its reports are; empty when nobody says."""


def encode(head: CommittedHead) -> tuple[bytes, ...]:
    """The fields; an address that doesn't fit is left out. ``Rejected('bad_commitment')`` for what can't be said."""
    if not _RUN.fullmatch(head.run) or not 0 <= head.seq < MAX_SEQ or not is_sha256(head.slot_sha256):
        raise _bad("a head has a run's name, a slot below 10^12 and 64 lowercase hex digits")
    first = TAG + f"{head.run} {head.seq} ".encode() + bytes.fromhex(head.slot_sha256)
    assert len(first) <= MAX_COMMITMENT_FIELD_BYTES
    return (first, head.reports.encode()) if _ADDRESS.fullmatch(head.reports) else (first,)


def decode(fields: Sequence[bytes]) -> CommittedHead:
    """The head in a commitment's Raw fields, or ``Rejected('bad_commitment')``."""
    if not 1 <= len(fields) <= 2:
        raise _bad(f"a head has 1 or 2 fields, not {len(fields)}")
    if not fields[0].startswith(TAG):
        raise _bad("it is no head of a log")
    found = _HEAD.fullmatch(fields[0].removeprefix(TAG)[: 2 * MAX_COMMITMENT_FIELD_BYTES])
    if found is None:
        raise _bad("it does not name run, slot and hash")
    run, seq, digest = found.groups()
    return CommittedHead(run.decode(), int(seq), Sha256(digest.hex()), _address(fields[1:]))


def of_run(fields: Sequence[bytes] | None, run: str) -> CommittedHead | None:
    """The head of ``run`` in what a hotkey committed; None when that is nothing, another run's, or something else."""
    if not fields:
        return None
    try:
        head = decode(fields)
    except Rejected:
        return None
    return head if head.run == run else None


def _address(rest: Sequence[bytes]) -> str:
    if not rest:
        return ""
    if len(rest[0]) > MAX_COMMITMENT_FIELD_BYTES:
        raise _bad("a field is too long")
    address = rest[0].decode("ascii", "replace")
    if not _ADDRESS.fullmatch(address):
        raise _bad("the reports' address is no URL")
    return address


def _bad(why: str) -> Rejected:
    return Rejected("bad_commitment", why)
