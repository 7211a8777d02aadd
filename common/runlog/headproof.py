"""Heads that validators committed on chain, against the log that a bucket shows. Pure.

Each slot names the one before by its hash, so one head proves all of the log up to its slot: a log that differs there
is another history, and one that ends before it was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common import keys
from common.chain.headcommit import CommittedHead
from common.runlog.proving import VerifyError
from common.units import Hotkey, Sha256

Heads = Mapping[Hotkey, CommittedHead]


@dataclass(frozen=True)
class ProvedTail:
    """How far heads on chain prove a log."""

    seq: int
    """The last slot that is proved; -1 when nobody has committed a head."""
    by: tuple[Hotkey, ...]
    """Who committed that one."""
    heads: int
    """Heads that were compared."""


def contradiction(run: str, hotkey: Hotkey, head: CommittedHead, found: Sha256 | None) -> str:
    """What is wrong when slot ``head.seq`` has the hash ``found`` (None: the log ends before it), or nothing."""
    if found == head.slot_sha256:
        return ""
    said = f"validator {hotkey} committed on chain that slot {head.seq} of run {run} is {head.slot_sha256}"
    if found is None:
        return f"{said}, and the log ends before it: its tail was cut off"
    return f"{said}, and the log has {found} there: it was rewritten, or this validator lies"


def prove_tail(run: str, hashes: Sequence[Sha256], heads: Heads) -> ProvedTail:
    """Compare all heads with the hashes of the log's slots, from 0. Raises ``VerifyError`` naming the slot."""
    for hotkey, head in sorted(heads.items(), key=lambda item: (item[1].seq, item[0])):
        found = hashes[head.seq] if head.seq < len(hashes) else None
        problem = contradiction(run, hotkey, head, found)
        if problem:
            raise VerifyError(keys.log_key(run, head.seq), problem)
    last = max((head.seq for head in heads.values()), default=-1)
    return ProvedTail(last, tuple(sorted(h for h, head in heads.items() if head.seq == last)), len(heads))
