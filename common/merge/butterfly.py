"""Who computes which partition of a round's mean, and what becomes of the copies. Pure.

Placement: every partition goes to ``redundancy`` owners who differ pairwise in coldkey, observed network and ASN, as
far as the candidates allow; a partition whose owners do not differ, or are too few, is ``related`` and the leader
computes it as well. It follows from the hash of the plan, of a block after it, and from the candidates.

What that is worth: miners can't choose it, since the block is final only when the plan stands; a miner can only leave
the candidates by falling silent. The leader can influence it, and nobody checks how: it says which block is the first
after the plan, so it may wait for one that suits it, and which miners live, are unbarred and unrelated is its own
knowledge. So a placement proves nothing to others, and is in no record; a new leader may place otherwise.

Load: candidates are dealt in shuffled turns of all of them, so that loads differ by one where all are unrelated; where
a few must be spread over the partitions of many, none carries more than twice its share and one turn.

Judgement: a copy counts when all owners handed in the same hash and nobody asks for more; everything else is computed
by the leader, whose result counts. An owner whose copy differs from what was computed is named, with both hashes.

What holds against owners who agree on the same lie, if the leader is honest: they would have to be of different
coldkeys, networks and ASNs, and drawn together by a hash; the leader then computes ``audits`` partitions drawn with its
own chance when all copies lay there, so a lie in m of P partitions escapes with probability C(P − m, audits) / C(P,
audits), and the held-out guard stands before the commit. One that escapes is in a committed revision, but not unseen:
the commit names the owners' signed words, and every follower that reduces the whole round convicts them by these. Only
audits = partitions excludes it beforehand.

What holds against a leader that picks owners who lie with it is none of the draws, but the followers: they merge every
revision again and compare all hashes, whoever was drawn. What differs convicts the owners whose words the commit names,
or else the leader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from common.units import Coldkey, Hotkey, Sha256

MOST_LOAD = 2
"""Times its fair share that a candidate may carry, so that partitions need not be related."""
WRONG_MEAN: Literal["wrong_mean"] = "wrong_mean"
LATE: Literal["late"] = "late"


@dataclass(frozen=True)
class Candidate:
    """A miner that may own partitions."""

    hotkey: Hotkey
    coldkey: Coldkey
    network: str | None = None
    """/24, or /48 of IPv6, that its heartbeats come from; None: nothing was observed that tells."""
    asn: int | None = None


@dataclass(frozen=True)
class Duty:
    """One partition and its owners."""

    partition: int
    owners: tuple[Hotkey, ...]
    related: bool
    """Whether fewer owners than asked for are independent of each other."""


@dataclass(frozen=True)
class Finding:
    """What one owner did to one partition that it should not have done."""

    hotkey: Hotkey
    partition: int
    code: Literal["wrong_mean", "late"]
    found: Sha256 | None
    """Hash of what it handed in; None: nothing in time."""
    computed: Sha256 | None
    """Hash of what the leader computed; None: it had no reason to."""


def placement_seed(plan_sha256: Sha256, block_hash: str) -> bytes:
    """SHA-256 over the plan's slot hash and the block's: unknown when the plan was written, if the block is later."""
    return hashlib.sha256(f"{plan_sha256}\n{block_hash.lower()}".encode()).digest()


def place(
    seed: bytes, candidates: Collection[Candidate], partitions: int, redundancy: int, shard: int = 0
) -> tuple[Duty, ...]:
    """The owners of every partition of a shard, by partition; the same whatever order the candidates come in."""
    if partitions < 1 or redundancy < 1:
        raise ValueError("partitions and redundancy must be at least 1")
    deck = _Deck(hashlib.sha256(seed + f"shard {shard}".encode()).digest(), candidates, partitions * redundancy)
    return tuple(_duty(deck, partition, redundancy) for partition in range(partitions))


def are_related(one: Candidate, other: Candidate) -> bool:
    """Whether the two may be one person's, or fail together. What is unknown relates nobody."""
    return (
        one.coldkey == other.coldkey
        or (one.network is not None and one.network == other.network)
        or (one.asn is not None and one.asn == other.asn)
    )


def audited(seed: bytes, partitions: int, count: int) -> frozenset[int]:
    """``count`` partitions, drawn by ``seed``. The owners must not know it before their copies lie there."""
    order = sorted(range(partitions), key=lambda partition: _rank(seed, "audit", partition))
    return frozenset(order[:count])


def must_compute(duty: Duty, copies: Mapping[Hotkey, Sha256]) -> str:
    """Why the leader has to compute this partition itself; empty when the owners' copies do."""
    if duty.related:
        return "related owners" if duty.owners else "no owners"
    missing = [owner for owner in duty.owners if owner not in copies]
    if missing:
        return "a late owner"
    return "" if len({copies[owner] for owner in duty.owners}) == 1 else "copies that differ"


def findings_of(
    duties: Iterable[Duty], copies: Mapping[int, Mapping[Hotkey, Sha256]], computed: Mapping[int, Sha256]
) -> tuple[Finding, ...]:
    """Whom to name, by partition and in the owners' order. ``computed``: what the leader made of a partition."""
    found = []
    for duty in duties:
        own, truth = copies.get(duty.partition, {}), computed.get(duty.partition)
        for owner in duty.owners:
            copy = own.get(owner)
            if copy is None:
                found.append(Finding(owner, duty.partition, LATE, None, truth))
            elif truth is not None and copy != truth:
                found.append(Finding(owner, duty.partition, WRONG_MEAN, copy, truth))
    return tuple(found)


class _Deck:
    """Candidates in the order in which they are dealt: shuffled turns, of which a bounded number exists."""

    def __init__(self, seed: bytes, candidates: Collection[Candidate], slots: int) -> None:
        self._seed = seed
        self._all = sorted(candidates, key=lambda candidate: candidate.hotkey)
        fair = -(-slots // len(self._all)) if self._all else 0
        self._turns_left = MOST_LOAD * fair + 1 if self._all else 0
        self._turn = 0
        self._waiting: list[Candidate] = []

    def draw(self, chosen: Sequence[Candidate]) -> tuple[Candidate | None, bool]:
        """The next one unrelated to ``chosen``; else any that is not among them, and False; (None, False) if none."""
        at = self._unrelated(chosen, 0)
        if at is None and self._turns_left > 0 and any(not _any_related(one, chosen) for one in self._all):
            before = len(self._waiting)
            self._shuffle_in()
            at = self._unrelated(chosen, before)
        if at is not None:
            return self._waiting.pop(at), True
        if self._turns_left > 0 and not any(one not in chosen for one in self._waiting):
            self._shuffle_in()
        at = next((i for i, one in enumerate(self._waiting) if one not in chosen), None)
        return (None, False) if at is None else (self._waiting.pop(at), False)

    def _unrelated(self, chosen: Sequence[Candidate], start: int) -> int | None:
        waiting = self._waiting
        return next((i for i in range(start, len(waiting)) if not _any_related(waiting[i], chosen)), None)

    def _shuffle_in(self) -> None:
        self._turn += 1
        self._turns_left -= 1
        self._waiting += sorted(self._all, key=lambda one: _rank(self._seed, f"turn {self._turn}", one.hotkey))


def _duty(deck: _Deck, partition: int, redundancy: int) -> Duty:
    chosen: list[Candidate] = []
    independent = True
    for _ in range(redundancy):
        candidate, unrelated = deck.draw(chosen)
        independent &= unrelated
        if candidate is None:
            break
        chosen.append(candidate)
    return Duty(partition, tuple(candidate.hotkey for candidate in chosen), not independent)


def _any_related(one: Candidate, chosen: Sequence[Candidate]) -> bool:
    return any(are_related(one, other) for other in chosen)


def _rank(seed: bytes, what: str, which: int | str) -> bytes:
    return hashlib.sha256(seed + f"{what} {which}".encode()).digest()
