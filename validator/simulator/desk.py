"""The simulated leader's desk: announcements, uploads, and what has come. As ``validator.intake`` does it, at one go.

Invariants: the same manifest gets the same receipt; a submission counts only once its manifest object is kept, so that
no restart loses one that was confirmed; of a drip only its arrival is looked at, a final is read at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from common.errors import Rejected, Retryable
from common.identity import SignedRecord
from common.records import Manifest, StoredSubmission
from common.units import Hotkey
from validator.checks import Finding, check_bytes, check_claims, check_streams
from validator.intake import SOONEST_DRIP
from validator.members import Members
from validator.membership import Seat
from validator.rounds import Round
from validator.simulator.events import Queue
from validator.simulator.records import Records
from validator.simulator.work import Offer
from validator.submissions import Submission

NOT_UPLOADED = Finding("not_uploaded", "there is no object of the announced size at the announced key")


class Desk:
    """Takes submissions for the round that it is given."""

    def __init__(
        self, records: Records, members: Members, seats: Mapping[Hotkey, Seat], queue: Queue, count: int, trust: bool
    ) -> None:
        """``count``: values of the trained vector. ``trust``: honest bytes are not read before they are judged."""
        self._records = records
        self._members = members
        self._seats = seats
        self._queue = queue
        self._count = count
        self._trust = trust

    def announce(self, current: Round | None, offer: Offer) -> StoredSubmission:
        """Receipt a manifest. Raises ``Rejected`` with the code of what is wrong, and ``Retryable``."""
        if current is None:
            raise Rejected("round_closed", "no round is open at the moment")
        manifest, record = (
            self._records.announce(offer)
            if offer.stored is None
            else (offer.stored.manifest, offer.stored.manifest_record)
        )
        self._check_place(current, manifest, trust=self._trust and offer.plain)
        submission = current.submissions.admit(manifest, record)
        if submission is None:
            self._check_pace(current, manifest)
            submission = self._receipt(current, manifest, record)
        return submission.stored

    def complete(self, current: Round | None, offer: Offer, suspicious: bool) -> Finding:
        """Look at an object that its sender says to have put. Raises ``Rejected`` and ``Retryable``."""
        found = self._find(current, offer)
        assert current is not None
        if found is None:
            raise Rejected("not_announced", "no manifest of this delta stands here; post it first")
        if found.finding is not None:
            return found.finding
        if not self._records.there(found.manifest):
            return NOT_UPLOADED
        if found.final:
            return self.check(current, found, trust=self._trust and not suspicious)
        if not found.complete:
            self._records.keep(found.stored)
            current.submissions.arrive(found, self._queue.now_s)
            self._note_upload(found)
        return Finding()

    def check(self, current: Round, found: Submission, *, last_call: bool = False, trust: bool = False) -> Finding:
        """Read a submission, and note what the check found."""
        finding = Finding() if trust else self._look(found)
        # Of bytes that are no good the manifest of a drip of the same bytes may lie there: the plan names that.
        kept = self._records.keep(found.stored) if finding.ok else self._records.kept_for(found.manifest)
        now_s = self._queue.now_s
        settled = current.submissions.settle(found, finding, now_s, last_call=last_call, kept=kept)
        if settled.complete and not found.complete:
            self._note_upload(found)
        return finding

    def last_look(self, current: Round, trusted: Callable[[Submission], bool]) -> None:
        """At the freeze: what has come though nobody said so, and the drips that count."""
        for found in current.submissions.unfinished():
            if self._records.there(found.manifest):
                self.check(current, found, last_call=True, trust=self._trust and trusted(found))
        while unread := current.submissions.unchecked():
            for found in unread:
                self.check(current, found, last_call=True, trust=self._trust and trusted(found))

    def _find(self, current: Round | None, offer: Offer) -> Submission | None:
        if current is None:
            raise Rejected("round_closed", "no round is open at the moment")
        assert offer.stored is not None
        manifest = offer.stored.manifest
        return current.submissions.find((manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256))

    def _look(self, found: Submission) -> Finding:
        body = self._records.read(found.manifest)
        if body is None:
            return NOT_UPLOADED
        return check_bytes(body, self._records.state.spec, found.manifest, self._count)

    def _check_place(self, current: Round, manifest: Manifest, trust: bool) -> None:
        state = self._records.state
        if self._records.base_sha256(manifest.base_revision) != manifest.base_sha256:
            raise Rejected("wrong_base", f"the log has no revision {manifest.base_revision}, {manifest.base_sha256}")
        if manifest.round == current.state.round and manifest.base_revision != current.state.base_revision:
            raise Rejected("wrong_base", f"the round's base is revision {current.state.base_revision}")
        if trust:  # what an honest miner claims is right by construction
            return
        for finding in (check_claims(state.spec, manifest, self._count), check_streams(state, manifest)):
            if not finding.ok:
                raise Rejected(finding.code, finding.reason)

    def _check_pace(self, current: Round, manifest: Manifest) -> None:
        line = manifest.shard, manifest.signer
        pause_s = SOONEST_DRIP * self._records.state.spec.round.drip_s
        waited_s = self._queue.now_s - current.dripped_s.get(line, -math.inf)
        if not manifest.final and manifest.round == current.state.round:
            if waited_s < pause_s:
                raise Retryable("a drip so soon after the one before", pause_s - waited_s)
            current.dripped_s[line] = self._queue.now_s

    def _receipt(self, current: Round, manifest: Manifest, record: SignedRecord) -> Submission:
        stored = self._records.receipt(manifest, record)
        now_s = self._queue.now_s
        submission = Submission(stored, self._seats[manifest.signer], now_s, manifest.final)
        current.submissions.add(submission)
        if manifest.round == current.state.round:
            delta = manifest.delta.sha256
            self._members.note_receipt(manifest.signer, manifest.round, delta, manifest.tokens, now_s)
        return current.submissions.find(submission.name) or submission

    def _note_upload(self, found: Submission) -> None:
        took_s = self._queue.now_s - found.received_s
        self._members.note_upload(found.manifest.signer, found.manifest.delta.size_bytes, took_s)
