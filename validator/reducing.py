"""What a leader knows of the owners' work on one plan: who has which duty, what is announced, what is there. Pure.

Invariants: nobody hands in what is not its duty, and of each of its duties one hash, the first that it announces; so
what an owner can make the leader keep, or put into the bucket, is bounded by its duties. It may hand them in by several
words. Once closed, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from common.errors import Rejected
from common.merge.butterfly import Duty
from common.reductions import MAX_COPIES, Copy, Reduction
from common.runlog.state import OpenRound
from common.units import Hotkey, RoundId, Sha256, ShardId
from validator.round.deadlines import reduce_until_s

Place = tuple[ShardId, int]
"""A shard and one of its partitions."""
Proof = tuple[bytes, tuple[Sha256, ...]]
"""Of one accepted delta its header and the hashes of its ranges."""


@dataclass(frozen=True)
class Kept:
    """An owner's copy that is there."""

    copy: Copy
    word_sha256: Sha256
    """Hash of the object that holds its signed word."""


@dataclass(frozen=True)
class Deal:
    """Who computes what."""

    seed: bytes
    duties: Mapping[Place, Duty]
    sizes: Mapping[Place, int]
    """Bytes of each mean."""
    inputs: Mapping[Place, Sha256]
    """What is to be read for it."""
    proofs: Mapping[ShardId, tuple[Proof, ...]]
    """Of each shard's accepted members, in the plan's order."""


@dataclass(frozen=True)
class Asked:
    """What the reply to an owner's heartbeat asks it for."""

    duties: tuple[tuple[Place, Sha256], ...]
    """Each with the hash of what is to be read."""
    seconds_left: float


def may_reduce(opened: OpenRound) -> bool:
    """Whether miners may reduce what the round has come to: its first plan. When the merge of that one does harm, the
    leader goes on alone."""
    return opened.plan is not None and opened.plan_sha256 is not None and opened.plan.attempt == 0


class Reducing:
    """The reduction of one plan by its owners."""

    def __init__(self, round_id: RoundId, plan_sha256: Sha256, planned_s: float, left_s: float) -> None:
        """``left_s`` were left to finish the round at ``planned_s``."""
        self.round = round_id
        self.plan_sha256 = plan_sha256
        self.planned_s = planned_s
        self.deal: Deal | None = None
        self.closed = False
        self.undisturbed = True
        """Whether all time since the deal counts: storage and leader were there throughout."""
        self._left_s = left_s
        self._dealt_s: float | None = None
        self._held: tuple[object, float] = None, 0.0
        self._of: dict[Hotkey, list[Place]] = {}
        self._announced: dict[tuple[Hotkey, Place], Copy] = {}
        self._there: dict[tuple[Hotkey, Place], Kept] = {}

    @property
    def deadline_s(self) -> float:
        """Until then the leader waits: for the deal, and once that is there for the owners."""
        return reduce_until_s(self.planned_s, self._left_s, self._dealt_s)

    def follow(self, of: object, held_s: float) -> None:
        """Of the round as its leader holds it, ``of``, so much time is held by now: what has been added since the last
        call moves the deadline. A leader that holds the round anew begins a new count, and counts nothing twice."""
        known, before_s = self._held
        self._held = of, held_s
        self.undisturbed = self.undisturbed and known is of and held_s <= before_s
        if known is not of:
            return
        self.planned_s += held_s - before_s
        if self._dealt_s is not None:
            self._dealt_s += held_s - before_s

    def begin(self, deal: Deal, now_s: float) -> None:
        """Duties are dealt."""
        self.deal, self._dealt_s, self.undisturbed = deal, now_s, True
        for place, duty in deal.duties.items():
            for owner in duty.owners:
                self._of.setdefault(owner, []).append(place)

    @property
    def owners(self) -> tuple[Hotkey, ...]:
        return tuple(self._of)

    def reduces(self, opened: OpenRound) -> bool:
        """Whether it is about the plan that a round has come to."""
        return may_reduce(opened) and opened.plan_sha256 == self.plan_sha256

    def waits(self, now_s: float) -> bool:
        """Whether there is time left for deal and owners."""
        return not self.closed and now_s < self.deadline_s

    def asked(self, hotkey: Hotkey, now_s: float) -> Asked | None:
        """What an owner is asked for now; None: for nothing."""
        due = self.due(hotkey)[:MAX_COPIES]
        if self.deal is None or not due or not self.waits(now_s):
            return None
        return Asked(tuple((place, self.deal.inputs[place]) for place in due), self.deadline_s - now_s)

    def due(self, hotkey: Hotkey) -> list[Place]:
        """What this owner has not handed in."""
        return [place for place in self._of.get(hotkey, ()) if (hotkey, place) not in self._there]

    def missing(self, lives: Callable[[Hotkey], bool]) -> int:
        """Means that owners who live have not handed in."""
        return sum(len(self.due(owner)) for owner in self._of if lives(owner))

    def announce(self, word: Reduction) -> None:
        """Take in what an owner says to have made, before it is there. Raises ``Rejected``; then nothing is noted."""
        deal = self.deal
        if self.closed or deal is None or word.plan_sha256 != self.plan_sha256 or word.round != self.round:
            raise Rejected("round_closed", "no such plan is being reduced now")
        for copy in word.copies:
            self._check(deal, word.signer, copy)
        for copy in word.copies:
            self._announced[word.signer, (copy.shard, copy.partition)] = copy

    def brings(self, word: Reduction) -> bool:
        """Whether an announced word names anything that is not there yet. Raises as ``take``."""
        self._require_open()
        return any((word.signer, (copy.shard, copy.partition)) not in self._there for copy in word.copies)

    def take(self, word: Reduction, sha256: Sha256) -> None:
        """All that an announced word names is there, and the word itself, whose object has this hash.

        Raises ``Rejected('round_closed')``.
        """
        self._require_open()
        for copy in word.copies:
            self._there.setdefault((word.signer, (copy.shard, copy.partition)), Kept(copy, sha256))

    def copies(self) -> dict[Place, dict[Hotkey, Kept]]:
        """What is there, by place and owner."""
        found: dict[Place, dict[Hotkey, Kept]] = {}
        for (owner, place), kept in self._there.items():
            found.setdefault(place, {})[owner] = kept
        return found

    def _require_open(self) -> None:
        if self.closed:
            raise Rejected("round_closed", "it came when the leader had begun to merge")

    def _check(self, deal: Deal, owner: Hotkey, copy: Copy) -> None:
        place = copy.shard, copy.partition
        told = f"partition {copy.partition} of shard {copy.shard}"
        duty = deal.duties.get(place)
        if duty is None or owner not in duty.owners:
            raise Rejected("not_your_duty", f"{told} is not this miner's to reduce")
        if copy.mean.size_bytes != deal.sizes[place]:
            raise Rejected("wrong_size", f"the mean of {told} has {deal.sizes[place]} bytes")
        if copy.inputs_sha256 != deal.inputs[place]:
            raise Rejected("wrong_inputs", f"{told} was not computed of the deltas of the plan; read them again")
        known = self._announced.get((owner, place))
        if known is not None and known.mean != copy.mean:
            raise Rejected("another_mean", f"this miner has announced another mean of {told} already")
