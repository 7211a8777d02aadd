"""Taking submissions: manifest → receipt and where to put the bytes, upload complete → a look at the object.

Invariants: the key is made from the authenticated hotkey; a receipt is given before a URL, the same manifest gets the
same receipt; the manifest object is in the bucket before anybody is told that a submission counts, so no restart
loses one that was confirmed; what lies there first is what the plan names.

Of a drip only its arrival is looked at, since a later one will replace it: it is read at the freeze, if it counts by
then. A final is read whole at once. How much one miner can bring is bounded: so many manifests in a round
(``Deadlines.most_manifests``), each of one size, and no drip soon after another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from common import keys
from common.blocking import in_thread
from common.errors import Rejected, Retryable
from common.identity import SignedRecord
from common.records import Manifest, Receipt, StoredSubmission, open_manifest, sign_receipt
from common.runlog.state import RunState
from common.spec import SCHEMA
from common.store.port import ObjectInfo, OutcomeUnknown, PreconditionFailed
from common.timeouts import LEASE_RENEW_S
from common.units import RoundId, Sha256, ShardId
from common.wire import CompleteReply, MultipartTarget, SubmissionReply, UploadTarget
from validator.api.security import Caller, RateLimited
from validator.board import Board
from validator.checks import Finding, check_bytes, check_claims, check_streams, read_delta
from validator.outages import only_facts
from validator.restoring import read_manifest
from validator.round.deadlines import url_life_s
from validator.rounds import Round
from validator.submissions import NOT_THERE, Line, Name, Submission
from validator.uploads import Uploads, there

CHECKS_AT_ONCE = 2
SOONEST_DRIP = 0.5
"""Of ``drip_s``: so soon after a drip another one may be announced."""
CUT_SHORT = frozenset({"wrong_size", "checksum_mismatch"})
"""Findings that tell of the transfer: the bytes that lie there are not the announced ones. A sender that lies announces
what it brings; and who announces one hash and sends other bytes is refused by the storage, which checks it."""
NOT_UPLOADED = Finding("not_uploaded", "there is no object of the announced size at the announced key")


class Intake:
    """The leader's desk for deltas."""

    def __init__(self, board: Board, uploads: Uploads) -> None:
        self._board = board
        self._uploads = uploads
        self._counts = board.counts()
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._turns: tuple[Round | None, dict[Line, asyncio.Lock]] = (None, {})
        self._refused: tuple[Round | None, dict[Name, tuple[str, Finding]]] = (None, {})
        """Of a round the objects that are not what was announced, by ETag: nobody makes us read one again and again."""

    async def submit(self, caller: Caller, manifest_json: dict[str, object], parts: Sequence[str]) -> SubmissionReply:
        """Receipt a manifest. Raises ``Rejected`` with the code of what is wrong, and ``Retryable``."""
        manifest, record = open_manifest(manifest_json, self._board.spec.run)  # type: ignore[arg-type]  # total on Any
        current, term = self._check_place(caller, manifest), self._board.leadership.term
        self._uploads.check(manifest, parts)
        async with self._turn(current, (manifest.shard, manifest.signer)):
            if self._current() is not current:
                raise Retryable("the round changed meanwhile; look at it again")
            submission = current.submissions.admit(manifest, record)
            if submission is None:
                self._check_pace(current, manifest)
                submission = self._receipt(caller, current, manifest, record)
        upload = await self._upload(current, submission, parts)
        self._require_lead(term)
        return SubmissionReply(receipt=self._receipt_for(submission, manifest, record).to_json(), upload=upload)

    async def complete(self, caller: Caller, round_id: int, shard: int, delta: str) -> CompleteReply:
        """Look at an object that its sender says to have put. Raises ``Rejected`` and ``Retryable``."""
        current, term = self._current(), self._board.leadership.term
        found = current.submissions.find((RoundId(round_id), ShardId(shard), caller.hotkey, Sha256(delta)))
        if found is None and round_id != current.state.round:
            raise Rejected("wrong_round", f"the open round is {current.state.round}, and this delta is not held for it")
        if found is None:
            raise Rejected("not_announced", "no manifest of this delta stands here; post it first")
        finding = await self._take(current, found)
        self._require_lead(term)
        return CompleteReply(accepted=finding.ok, code=finding.code, reason=finding.reason[:300])

    async def last_look(self, current: Round, submission: Submission) -> None:
        """At the freeze: read what counts, and what has come though nobody said that it is complete."""
        async with self._turn(current, submission.line):
            if await self._joined(submission) is not None:
                await self._check(current, submission, last_call=True)
            elif submission.complete:  # lost since: it must not be looked for again and again
                current.submissions.settle(submission, NOT_UPLOADED, self._board.now_s(), last_call=True)

    # Taking in what has come.

    async def _take(self, current: Round, submission: Submission) -> Finding:
        async with self._turn(current, submission.line):
            present = current.submissions.find(submission.name) or submission
            if present.finding is not None:
                return present.finding
            etag = await self._joined(present, said=True)
            if etag is None:
                return NOT_UPLOADED
            self._board.health.vitals.arrived(present.name, self._board.now_s())
            if present.final:
                return await self._check_once(current, present, etag)
            if not present.complete:
                await in_thread(lambda: self._keep_manifest(self._board.journal.state, present.stored))
                current.submissions.arrive(present, self._board.now_s())
                self._note_upload(present)
            return Finding()

    def _note_upload(self, submission: Submission) -> None:
        """How fast it came tells when its sender's next one will be there."""
        manifest, took_s = submission.manifest, self._board.now_s() - submission.received_s
        self._board.members.note_upload(manifest.signer, manifest.delta.size_bytes, took_s)

    async def _joined(self, submission: Submission, said: bool = False) -> str | None:
        """ETag of the object, if one of the right size is there, after its parts were joined; ``said``: its sender says
        that all is there."""
        manifest, vitals = submission.manifest, self._board.health.vitals
        try:
            await in_thread(lambda: self._uploads.finish(manifest))
        except Rejected as refusal:
            if refusal.code != NOT_UPLOADED.code:
                raise
            if said:  # some parts are missing
                vitals.cut_short(submission.name)
            return None
        found = await in_thread(lambda: there(self._board.store, manifest))
        if found is not None and found.size_bytes != manifest.delta.size_bytes:
            vitals.cut_short(submission.name)
            return None
        return None if found is None else found.etag

    async def _check_once(self, current: Round, submission: Submission, etag: str) -> Finding:
        """``_check``, unless this very object was found not to be the announced one."""
        if self._refused[0] is not current:
            self._refused = (current, {})
        refused = self._refused[1]
        before = refused.get(submission.name)
        if before is not None and before[0] == etag:
            return before[1]
        finding = await self._check(current, submission, last_call=False)
        if finding.code in NOT_THERE:
            refused[submission.name] = etag, finding
        return finding

    async def _check(self, current: Round, submission: Submission, last_call: bool) -> Finding:
        """Read the bytes, store the manifest if they are good, and note the finding."""
        run = self._board.journal.state
        async with self._checking:
            finding, kept = await in_thread(lambda: self._check_and_store(run, submission.stored))
        now_s = self._board.now_s()
        if finding.code in CUT_SHORT:
            self._board.health.vitals.cut_short(submission.name)
        settled = current.submissions.settle(submission, finding, now_s, last_call=last_call, kept=kept)
        if settled.complete and not submission.complete:
            self._note_upload(submission)
        return finding

    def _check_and_store(self, run: RunState, stored: StoredSubmission) -> tuple[Finding, StoredSubmission | None]:
        """In a worker thread: read, compare, and put the manifest object beside a good delta; what lies there then."""
        board, manifest = self._board, stored.manifest
        body = read_delta(board.store, manifest)
        if isinstance(body, Finding):
            return body, self._kept(run, manifest)
        finding = check_bytes(body, board.spec, manifest, self._counts[manifest.shard])
        if not finding.ok:
            # A drip of the same bytes may have left its manifest here unread: the plan names what lies there.
            return finding, self._kept(run, manifest)
        board.reader.remember(manifest.delta.sha256, body)
        return finding, self._keep_manifest(run, stored)

    def _kept(self, run: RunState, manifest: Manifest) -> StoredSubmission | None:
        """The manifest object that lies beside a delta, if one does."""
        place = (manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256)
        return read_manifest(self._board.reader, run, keys.manifest_key(manifest.run, *place))

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
            before = store.head(key)
            there = read_manifest(self._board.reader, run, key)
            if there is None:  # nothing, or no submission: no restart would have restored it
                self._replace(key, stored.encode(), before)
        return there or stored

    def _replace(self, key: str, body: bytes, before: ObjectInfo | None) -> None:
        """Put it where nothing lies, or what was looked at: another leader may have put the right one since."""
        try:
            if before is None:
                self._board.store.put(key, body, if_none_match=True)
            else:
                self._board.store.put(key, body, if_match=before.etag)
        except PreconditionFailed as fault:
            raise Retryable(f"{key} has changed while it was looked at") from fault

    # Announcements.

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

    def _require_lead(self, term: int) -> None:
        """Before an answer goes out: what took long may have been a sleep, and a URL, a receipt or a word of ours that
        is given after it would be that of a leader who was replaced."""
        leadership = self._board.leadership
        if not leadership.sure() or leadership.term != term:
            raise Retryable("this process may have been replaced meanwhile; look at the log again", LEASE_RENEW_S)

    def _turn(self, current: Round, line: Line) -> asyncio.Lock:
        """Held while a submission of this line is announced or looked at: nothing replaces one that is being read."""
        if self._turns[0] is not current:
            self._turns = (current, {})
        return self._turns[1].setdefault(line, asyncio.Lock())

    def _check_place(self, caller: Caller, manifest: Manifest) -> Round:
        """Whether this manifest may be announced by this caller now; the round that takes it."""
        current, run = self._current(), self._board.journal.state
        if manifest.signer != caller.hotkey:
            raise Rejected("wrong_hotkey", "the manifest is signed by another hotkey than the request")
        if manifest.shard not in self._counts:
            raise Rejected("wrong_shard", f"the run has shards 0 to {self._board.spec.num_shards - 1}")
        base = run.revisions.get(manifest.base_revision)
        if base is None or base.sha256 != manifest.base_sha256:
            raise Rejected("wrong_base", f"the log has no revision {manifest.base_revision}, {manifest.base_sha256}")
        if manifest.round == current.state.round and manifest.base_revision != current.state.base_revision:
            raise Rejected("wrong_base", f"the round's base is revision {current.state.base_revision}")
        for finding in (
            check_claims(self._board.spec, manifest, self._counts[manifest.shard]),
            check_streams(run, manifest),
        ):
            if not finding.ok:
                raise Rejected(finding.code, finding.reason)
        return current

    def _check_pace(self, current: Round, manifest: Manifest) -> None:
        """Raise ``RateLimited`` for a drip that comes too soon after the one before."""
        line = manifest.shard, manifest.signer
        pause_s = SOONEST_DRIP * self._board.spec.round.drip_s
        waited_s = self._board.now_s() - current.dripped_s.get(line, -math.inf)
        if not manifest.final and manifest.round == current.state.round:
            if waited_s < pause_s:
                raise RateLimited("miner's drips", pause_s - waited_s)
            current.dripped_s[line] = self._board.now_s()

    def _receipt(self, caller: Caller, current: Round, manifest: Manifest, record: SignedRecord) -> Submission:
        board, receipt = self._board, self._word(manifest, record)
        stored = StoredSubmission(manifest, receipt, record, sign_receipt(receipt, board.signer))
        submission = Submission(stored, caller.seat, board.now_s(), manifest.final)
        board.membership.pin(caller.seat)
        current.submissions.add(submission)
        if manifest.round == current.state.round:
            delta, tokens = manifest.delta.sha256, manifest.tokens
            board.members.note_receipt(manifest.signer, manifest.round, delta, tokens, board.now_s())
        return current.submissions.find(submission.name) or submission

    def _receipt_for(self, submission: Submission, manifest: Manifest, record: SignedRecord) -> SignedRecord:
        """Our word for what was sent. What the bucket keeps may be the word of the leader before us: no miner takes
        that for ours, and it would ask for ever."""
        kept = submission.receipt
        if (kept.signer, kept.manifest_sha256) == (self._board.signer.hotkey, record.sha256):
            return submission.stored.receipt_record
        return sign_receipt(self._word(manifest, record), self._board.signer)

    def _word(self, manifest: Manifest, record: SignedRecord) -> Receipt:
        board = self._board
        return Receipt(
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

    async def _upload(
        self, current: Round, submission: Submission, parts: Sequence[str]
    ) -> UploadTarget | MultipartTarget | None:
        """Where to put the bytes, or nothing when they are there already; then the submission is taken in."""
        if submission.complete and (submission.finding is not None or not submission.final):
            return None
        manifest = submission.manifest
        expires_s = math.ceil(url_life_s(current.state, self._board.now_s(), current.policy))
        target = await in_thread(lambda: self._uploads.target(manifest, parts, expires_s))
        if target is not None:
            if manifest.round == current.state.round:  # a late one may have come in part before
                vitals = self._board.health.vitals
                whole = not isinstance(target, MultipartTarget) or target.missing <= len(target.parts)
                size_bytes, word = manifest.delta.size_bytes, submission.receipt.manifest_sha256
                vitals.allowed(submission.name, size_bytes, self._board.now_s(), whole, word)
            return target
        finding = await self._take(current, submission)
        if finding.code in NOT_THERE:
            return await in_thread(lambda: self._uploads.target(manifest, parts, expires_s, again=True))
        return None
