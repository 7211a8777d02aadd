"""Taking submissions: manifest → receipt and URL, upload complete → check. The leader's part of a delivery.

Invariants: the key is made from the authenticated hotkey; a receipt is given before a URL, the same manifest gets the
same receipt; the manifest object is in the bucket before anybody is told that a submission counts, so no restart
loses one that was confirmed; what lies there first is what the plan names.
"""

from __future__ import annotations

import asyncio
import math

from common import keys
from common.blocking import in_thread
from common.errors import Rejected, Retryable
from common.identity import SignedRecord
from common.records import Manifest, Receipt, StoredSubmission, open_manifest, sign_receipt
from common.runlog.state import RunState
from common.spec import SCHEMA
from common.store.port import OutcomeUnknown, PreconditionFailed, PresignedPut
from common.timeouts import LEASE_RENEW_S
from common.units import Sha256, ShardId
from common.wire import CompleteReply, SubmissionReply, UploadTarget
from validator.api.security import Caller
from validator.board import Board
from validator.checks import Finding, check_bytes, check_claims, read_delta
from validator.outages import only_facts
from validator.round.core import seconds_left
from validator.round.facts import Phase, RoundPolicy
from validator.rounds import Round, read_manifest
from validator.submissions import Submission

CHECKS_AT_ONCE = 2
PASSING = frozenset({"not_uploaded", "wrong_size", "checksum_mismatch"})
"""Findings that say that the upload is not complete: the miner may put the object again."""


class Intake:
    """The leader's desk for deltas."""

    def __init__(self, board: Board, policy: RoundPolicy) -> None:
        self._board = board
        self._policy = policy
        self._counts = board.counts()
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def submit(self, caller: Caller, manifest_json: dict[str, object]) -> SubmissionReply:
        """Receipt a manifest. Raises ``Rejected`` with the code of what is wrong, and ``Retryable``."""
        manifest, record = open_manifest(manifest_json, self._board.spec.run)  # type: ignore[arg-type]  # total on Any
        current = self._check_place(caller, manifest)
        async with current.submissions.turn(manifest.signer, manifest.shard):
            if self._current() is not current:
                raise Retryable("the round changed meanwhile; look at it again")
            present = current.submissions.admit(manifest, record)
            submission = present or self._receipt(caller, current, manifest, record)
        if submission.finding is None:
            with only_facts():
                info = await in_thread(lambda: self._board.store.head(manifest.key))
            if info is not None and info.size_bytes == manifest.delta.size_bytes:
                submission, _ = await self.check(current, submission)
        upload = None if submission.finding is not None else await self._upload(current, manifest)
        return SubmissionReply(receipt=submission.stored.receipt_record.to_json(), upload=upload)

    async def complete(self, caller: Caller, round_id: int, shard: int, delta: str) -> CompleteReply:
        """Check an object that its sender says to have put. Raises ``Rejected`` and ``Retryable``."""
        current = self._current()
        if round_id != current.state.round:
            raise Rejected("wrong_round", f"the open round is {current.state.round}")
        found = current.submissions.find(caller.hotkey, ShardId(shard), Sha256(delta))
        if found is None:
            raise Rejected("not_announced", "no manifest of this delta stands here; post it first")
        _, finding = await self.check(current, found)
        return CompleteReply(accepted=finding.ok, code=finding.code, reason=finding.reason[:300])

    async def check(
        self, current: Round, submission: Submission, last_call: bool = False
    ) -> tuple[Submission, Finding]:
        """Check a submission's bytes, store its manifest if they are good, and note the finding."""
        manifest, run = submission.manifest, self._board.journal.state
        async with current.submissions.turn(manifest.signer, manifest.shard), self._checking:
            found = current.submissions.find(manifest.signer, manifest.shard, manifest.delta.sha256)
            if found is not None and found.finding is not None:
                return found, found.finding
            finding, kept = await in_thread(lambda: self._check_and_store(run, submission.stored))
            if finding.code in PASSING:
                return submission, finding
            return current.submissions.settle(submission, finding, last_call, kept), finding

    def _check_and_store(self, run: RunState, stored: StoredSubmission) -> tuple[Finding, StoredSubmission | None]:
        """In a worker thread: read, compare, and put the manifest object beside a good delta; what lies there then."""
        board, manifest = self._board, stored.manifest
        body = read_delta(board.store, manifest)
        if isinstance(body, Finding):
            return body, None
        finding = check_bytes(body, board.spec, manifest, self._counts[manifest.shard])
        if not finding.ok:
            return finding, None
        board.reader.remember(manifest.delta.sha256, body)
        return finding, self._keep_manifest(run, stored)

    def _keep_manifest(self, run: RunState, stored: StoredSubmission) -> StoredSubmission:
        """Put the manifest object, or adopt the one that a leader before us, or a lost reply, has left there."""
        manifest, store = stored.manifest, self._board.store
        key = keys.manifest_key(manifest.run, manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256)
        with only_facts():
            try:
                store.put(key, stored.encode(), if_none_match=True)
                return stored
            except (PreconditionFailed, OutcomeUnknown):
                pass
            there = read_manifest(store, run, key)
            if there is None:  # nothing, or no submission: no restart would have restored it
                store.put(key, stored.encode())
        return there or stored

    def _current(self) -> Round:
        board = self._board
        if not board.leadership.leading:
            leader = board.journal.state.leader
            raise Rejected("not_leader", f"the leader is {leader}" if leader else "nobody leads yet")
        if not board.leadership.sure():
            raise Retryable("the lease could not be renewed in time; another may lead by now", LEASE_RENEW_S)
        if board.round is None:
            raise Rejected("round_closed", "no round is open at the moment")
        return board.round

    def _check_place(self, caller: Caller, manifest: Manifest) -> Round:
        """Whether this manifest may be announced by this caller now; the round that takes it."""
        current = self._current()
        if manifest.signer != caller.hotkey:
            raise Rejected("wrong_hotkey", "the manifest is signed by another hotkey than the request")
        if manifest.round != current.state.round:
            raise Rejected("wrong_round", f"the open round is {current.state.round}, not {manifest.round}")
        base = (current.state.base_revision, current.base_sha256)
        if (manifest.base_revision, manifest.base_sha256) != base:
            raise Rejected("wrong_base", f"the round's base is revision {base[0]}, {base[1]}")
        if manifest.shard not in self._counts:
            raise Rejected("wrong_shard", f"the run has shards 0 to {self._board.spec.num_shards - 1}")
        finding = check_claims(self._board.spec, manifest, self._counts[manifest.shard])
        if not finding.ok:
            raise Rejected(finding.code, finding.reason)
        return current

    def _receipt(self, caller: Caller, current: Round, manifest: Manifest, record: SignedRecord) -> Submission:
        board = self._board
        receipt = Receipt(
            schema=SCHEMA,
            run=board.spec.run,
            signer=board.signer.hotkey,
            round=manifest.round,
            shard=manifest.shard,
            hotkey=manifest.signer,
            manifest_sha256=record.sha256,
            delta_sha256=manifest.delta.sha256,
            term=board.leadership.term,
            received_ms=board.clock.wall_ns() // 1_000_000,
        )
        stored = StoredSubmission(manifest, receipt, record, sign_receipt(receipt, board.signer))
        submission = Submission(stored, caller.seat, board.now_s())
        board.membership.pin(caller.seat)
        current.submissions.add(submission)
        return submission

    async def _upload(self, current: Round, manifest: Manifest) -> UploadTarget:
        expires_s = max(1, math.ceil(self._hard_deadline_s(current)))
        size_bytes, sha256 = manifest.delta.size_bytes, manifest.delta.sha256
        put: PresignedPut = await in_thread(
            lambda: self._board.store.presign_put(
                manifest.key, size_bytes=size_bytes, sha256=sha256, expires_s=expires_s
            )
        )
        return UploadTarget(url=put.url, headers=dict(put.headers), expires_in_s=float(expires_s))

    def _hard_deadline_s(self, current: Round) -> float:
        """Until the last moment at which an upload of this round can count."""
        left_s = seconds_left(current.state, self._board.now_s(), self._policy)
        return left_s + self._policy.submit_deadline_s if current.state.phase is Phase.OPEN else left_s
