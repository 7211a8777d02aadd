"""The state of a run as its log tells it: frozen facts, and the questions that every process asks of them.

A ``RunState`` is made by ``replay.py`` only. Invariants: revision 0 and ``head`` are always in ``revisions``; numbers
of revisions and rounds never come twice; ``leaders`` has terms 1, 2, 3 … in order. After a rollback the head is an
earlier revision, and the next one a second child of it: revisions are a tree, and only lineages are linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from common.reductions import Reduced
from common.runlog.entries import Gc, PlanMember, RoundFrozen, ShardState, StorageMoved, revision_hash
from common.spec import RunSpec
from common.store.place import BucketPlace
from common.units import Hotkey, Revision, RoundId, Sha256


@dataclass(frozen=True)
class RevisionNode:
    """One committed version of the weights."""

    revision: Revision
    parent: Revision | None
    """None only for revision 0."""
    round: RoundId | None
    """The round that made it; None only for revision 0."""
    shards: tuple[ShardState, ...]
    """One for each shard, in order."""
    tokens_merged: int
    seq: int
    """Slot of the entry that committed it."""
    plan_seq: int | None = None
    """Slot of the plan that it was merged by; None only for revision 0."""
    plan_sha256: Sha256 | None = None
    """Hash of that slot's bytes."""
    first_step: int = 0
    """Inner steps of the rounds on its ancestors, as the spec counts them: what a re-warming is measured by."""
    from_reset: bool = False
    """Whether its merge started from an outer state of zero, not its parent's: the first one after a rollback, in a run
    whose policy says so."""
    merged_bytes: tuple[int, ...] = ()
    """Of each shard: the size of the deltas that its plan accepted, which whoever merges it again has to read."""
    reduced: Reduced | None = None
    """What its leader took from miners."""

    @property
    def sha256(self) -> Sha256:
        """Hash of the whole revision: what a manifest names as its base."""
        return revision_hash(self.shards)

    @property
    def first_round(self) -> RoundId:
        """The first round that could have it as its base."""
        return RoundId(0 if self.round is None else self.round + 1)


@dataclass(frozen=True)
class OpenRound:
    """A round that has begun and not ended: with a plan it is frozen."""

    round: RoundId
    base_revision: Revision
    opened_ms: int
    """The leader's wall clock, for people."""
    plan: RoundFrozen | None = None
    plan_sha256: Sha256 | None = None
    """Hash of the bytes of the slot that holds the plan."""
    frozen_seq: int | None = None


@dataclass(frozen=True)
class Leadership:
    """Who leads from a slot on."""

    term: int
    hotkey: Hotkey
    instance: str
    """Nonce of the process, as in its lease."""
    seq: int


@dataclass(frozen=True)
class Pause:
    """Why the run stands still, and the slot that says so."""

    seq: int
    code: str
    evidence: tuple[str, ...]
    at_ms: int
    """The leader's wall clock."""


@dataclass(frozen=True)
class Restart:
    """A point at which every miner starts anew: a rollback, or the end of a pause so long that the run went cold."""

    seq: int
    revision: Revision
    """The head from there on."""
    round: RoundId
    """The first round after it."""
    kind: Literal["rollback", "cold"]
    """rollback: nothing that was trained or sent before counts any more; cold: all of it still does."""


@dataclass(frozen=True)
class Collection:
    """A ``gc`` entry, and where it stands."""

    seq: int
    gc: Gc


@dataclass(frozen=True)
class Void:
    """A slot that counts for nothing."""

    seq: int
    code: str
    message: str
    signer: Hotkey | None
    """Who signed it; None when the bytes are no signed entry."""


@dataclass(frozen=True)
class RunState:
    """Everything that the log says, after the slots below ``next_seq``."""

    spec: RunSpec
    next_seq: int
    """The slot that the next entry takes."""
    head_sha256: Sha256
    """SHA-256 of the last slot's bytes, void or not: what the next entry names as its ``prev``."""
    revisions: Mapping[Revision, RevisionNode]
    head: Revision
    """The revision that miners train on."""
    next_round: RoundId
    leaders: tuple[Leadership, ...] = ()
    """Every leader so far; the last one leads."""
    open_round: OpenRound | None = None
    turned_seq: int = 0
    """Slot in which a round was last opened or ended, or the run resumed or rolled back; 0: never."""
    rounds_committed: int = 0
    rounds_aborted: int = 0
    tokens_merged: int = 0
    """Tokens of all committed rounds."""
    voids: tuple[Void, ...] = ()
    deferred: tuple[PlanMember, ...] = ()
    """Of the plan that made the head: what the next plan takes or rejects."""
    merged: frozenset[tuple[Hotkey, int]] = frozenset()
    """Hotkey and registration block of everybody whose work is in some revision."""
    failures: tuple[str, ...] = ()
    """Codes of the rounds that were aborted for their content since the last commit or resumption, oldest first."""
    paused: Pause | None = None
    """Why no round may be opened; None while rounds may."""
    restarts: tuple[Restart, ...] = ()
    """All of them, oldest first."""
    obeyed: frozenset[Sha256] = frozenset()
    """The owner's commands that entries name: each counts once."""
    switched_seq: int = 0
    """Slot of the newest pause or resumption; 0 before the first."""
    moves: tuple[StorageMoved, ...] = ()
    """From bucket to bucket, each beginning where the one before ended."""
    validator_sets: tuple[tuple[Hotkey, ...], ...] = ()
    """Who may lead, as the owner changed it since the beginning: the last one holds, the spec's before the first."""

    collections: tuple[Collection, ...] = ()
    """What was named for deletion, oldest first."""

    @property
    def floor(self) -> Revision:
        """The oldest revision that is whole; what is before it may be gone from the bucket."""
        return self.collections[-1].gc.floor if self.collections else Revision(0)

    def why_gone(self, revision: Revision) -> str:
        """That retention has deleted what a revision needs; empty when it has not."""
        kept = f"the oldest revision kept is {self.floor}"
        return f"revision {revision} was deleted by retention; {kept}" if revision < self.floor else ""

    @property
    def run(self) -> str:
        return self.spec.run

    @property
    def validators(self) -> tuple[Hotkey, ...]:
        """Hotkeys that may lead now."""
        return self.validator_sets[-1] if self.validator_sets else self.spec.validators

    @property
    def ever_validators(self) -> frozenset[Hotkey]:
        """Hotkeys that may lead or once might: whose reports and leases may be in the bucket."""
        return frozenset(self.spec.validators).union(*self.validator_sets)

    @property
    def moved(self) -> StorageMoved | None:
        """The run's last move to another bucket."""
        return self.moves[-1] if self.moves else None

    def left(self, place: BucketPlace | None) -> bool:
        """Whether the log goes on in another bucket than ``place``, after the slots read so far."""
        return self.moved is not None and self.moved.source == place

    @property
    def term(self) -> int:
        """Term of the present leader; 0 before the first."""
        return self.leaders[-1].term if self.leaders else 0

    @property
    def leader(self) -> Hotkey | None:
        """The hotkey that may append; None before the first ``leader_changed``."""
        return self.leaders[-1].hotkey if self.leaders else None

    @property
    def next_revision(self) -> Revision:
        return Revision(max(self.revisions) + 1)

    @property
    def head_node(self) -> RevisionNode:
        return self.revisions[self.head]

    @property
    def rollback(self) -> Restart | None:
        """The newest rollback."""
        return next((restart for restart in reversed(self.restarts) if restart.kind == "rollback"), None)

    @property
    def first_round(self) -> RoundId:
        """The first round whose submissions may count on the head: what was made before a rollback never does."""
        rollback = self.rollback
        return RoundId(max(self.head_node.first_round, rollback.round if rollback else 0))

    @property
    def resets_outer(self) -> bool:
        """Whether the next commit starts from an outer state of zero: the first one on a rollback's revision."""
        rollback = self.rollback
        return self.spec.restart.reset_outer and rollback is not None and rollback.revision == self.head

    def leader_of(self, term: int) -> Hotkey | None:
        """Who led in ``term``; None for a term that the log does not know."""
        return self.leaders[term - 1].hotkey if 1 <= term <= len(self.leaders) else None

    def led_at(self, seq: int) -> Hotkey | None:
        """Who led when a slot was written; None for those before the first ``leader_changed``."""
        return next((leader.hotkey for leader in reversed(self.leaders) if leader.seq < seq), None)

    def lineage(self, revision: Revision) -> tuple[RevisionNode, ...]:
        """The nodes from revision 0 to ``revision``, along the parents. KeyError for an unknown revision."""
        path = [self.revisions[revision]]
        while path[-1].parent is not None:
            path.append(self.revisions[path[-1].parent])
        return tuple(reversed(path))
