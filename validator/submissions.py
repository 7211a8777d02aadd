"""Receipts and checked submissions of one round.

Invariants: of each (hotkey, shard) the first manifest wins, unless its upload was never completed: then a later one of
another delta takes its place. The same manifest again gives the same receipt. A delta has one manifest, since the
manifest object is named by the delta: plan and bucket could not agree on two. What was checked once is never checked
again, and ``for_plan`` names every receipted submission: an honest leader leaves none out.
Not for threads: the event loop owns it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from common.errors import Rejected
from common.identity import SignedRecord
from common.records import Manifest, Receipt, StoredSubmission
from common.units import Hotkey, RoundId, Sha256, ShardId
from validator.checks import Finding
from validator.membership import Seat

MAX_MANIFESTS = 4
"""Different manifests that one hotkey may post for one shard and round."""


@dataclass(frozen=True)
class Submission:
    """One announced delta and what became of it."""

    stored: StoredSubmission
    seat: Seat
    received_s: float
    """When its manifest came, on the receiver's clock."""
    finding: Finding | None = None
    """Outcome of the check of its bytes; None before they have come."""

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest

    @property
    def receipt(self) -> Receipt:
        return self.stored.receipt

    @property
    def place(self) -> tuple[ShardId, Hotkey]:
        """What orders a plan."""
        return self.manifest.shard, self.manifest.signer


class Submissions:
    """The submissions of one round; ``closed`` after the freeze."""

    def __init__(self, round_id: RoundId) -> None:
        self.round = round_id
        self.closed = False
        self._by_place: dict[tuple[ShardId, Hotkey], Submission] = {}
        self._tries: dict[tuple[ShardId, Hotkey], set[Sha256]] = {}
        self._announced: dict[tuple[ShardId, Hotkey, Sha256], Sha256] = {}
        self._turns: dict[tuple[ShardId, Hotkey], asyncio.Lock] = {}

    def turn(self, hotkey: Hotkey, shard: ShardId) -> asyncio.Lock:
        """Held while a submission of this place is announced or checked: nothing replaces one that is being read."""
        return self._turns.setdefault((shard, hotkey), asyncio.Lock())

    def find(self, hotkey: Hotkey, shard: ShardId, delta: Sha256) -> Submission | None:
        """The submission that stands at this place, if it is of this delta."""
        found = self._by_place.get((shard, hotkey))
        return found if found is not None and found.manifest.delta.sha256 == delta else None

    def admit(self, manifest: Manifest, record: SignedRecord) -> Submission | None:
        """The submission that holds this manifest already, or None when a new one may be receipted.

        Raises ``Rejected``: ``round_closed``, ``already_submitted``, ``already_announced``, ``too_many_submissions``.
        """
        place = (manifest.shard, manifest.signer)
        present = self._by_place.get(place)
        same = present is not None and present.stored.manifest_record.sha256 == record.sha256
        if present is not None and same and (present.finding is not None or not self.closed):
            return present
        if self.closed:
            raise Rejected("round_closed", f"round {self.round} takes no more submissions")
        if present is not None and present.finding is not None:
            raise Rejected("already_submitted", "the first complete submission of a round counts")
        if self._announced.get((*place, manifest.delta.sha256), record.sha256) != record.sha256:
            raise Rejected("already_announced", "this delta was announced with another manifest; send that one again")
        tries = self._tries.setdefault(place, set())
        if len(tries) >= MAX_MANIFESTS:
            raise Rejected("too_many_submissions", f"at most {MAX_MANIFESTS} manifests in a round")
        tries.add(record.sha256)
        return None

    def add(self, submission: Submission) -> None:
        """Take in a receipted submission, or one found in the bucket."""
        self._by_place[submission.place] = submission
        manifest = submission.stored.manifest_record.sha256
        self._announced.setdefault((*submission.place, submission.manifest.delta.sha256), manifest)

    def settle(
        self, submission: Submission, finding: Finding, last_call: bool = False, kept: StoredSubmission | None = None
    ) -> Submission:
        """Note what the check found; the first finding stands, and nothing changes after the freeze.

        ``kept`` is what the bucket holds for this delta, perhaps with another manifest: the plan names that.
        ``last_call`` is for the leader's own sweep at the freeze: what has arrived by then counts.
        """
        present = self._by_place.get(submission.place)
        if present is None or present.stored != submission.stored:
            raise Rejected("superseded", "another manifest has taken this one's place")
        if present.finding is not None:
            return present
        if self.closed and not last_call:
            raise Rejected("round_closed", f"round {self.round} was frozen before the upload was complete")
        settled = replace(present, stored=kept or present.stored, finding=finding)
        self._by_place[submission.place] = settled
        return settled

    def delivered(self) -> dict[Hotkey, bool]:
        """For each hotkey that announced something: whether all of it has been checked."""
        done: dict[Hotkey, bool] = {}
        for submission in self._by_place.values():
            hotkey = submission.manifest.signer
            done[hotkey] = done.get(hotkey, True) and submission.finding is not None
        return done

    def unfinished(self) -> tuple[Submission, ...]:
        """Those whose bytes have not been checked."""
        return tuple(submission for submission in self.for_plan() if submission.finding is None)

    def for_plan(self) -> tuple[Submission, ...]:
        """Every submission, ordered by shard and hotkey."""
        return tuple(self._by_place[place] for place in sorted(self._by_place))
