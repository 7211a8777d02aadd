"""Handing in one submission: manifest → receipt → PUT → complete, repeated until it is through or refused for good.

Every step is idempotent: the same manifest gets the same receipt, the same bytes go to the same key, and a completed
submission may be completed again. So whatever is lost on the way, the answer is to start over; a new leader, or a new
process of the old one, hears of the submission in the same way. A delta above one part goes in parts, and the leader
answers with those that are missing, so that starting over sends nothing twice: all that it takes is the delta itself.
Success is the leader's word that it has found the object as announced, not a status of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, Retryable
from common.identity import SignedRecord
from common.records import Receipt, open_receipt
from common.store.http import HttpClient
from common.store.multipart import PART_BYTES, Md5, part_digests
from common.store.retry import RetryPolicy
from common.store.transfer import Progress, upload
from common.units import format_bytes
from common.wire import CompleteReply, MultipartTarget, PartTarget, SubmissionReply, UploadTarget
from miner.client import ValidatorClient
from miner.delta import Submission
from miner.lanes import LANES, Lanes, PutPart
from miner.meter import Abandoned, UploadMeter
from miner.patience import Patience
from miner.places import UploadCheck

NOT_NOW = frozenset({"not_leader", "round_closed", "wrong_round"})
"""Refusals of a leader that is not where the log is: asked again until the log ends the round."""
KEYS_CHANGE = "storage_refused"
"""The storage does not know the keys that a URL was signed with: the leader's are being changed, which takes an
operator a while, or its bucket is. Asked again until nobody waits for the submission any more."""
AGAIN = frozenset(
    {
        "not_announced",
        "not_uploaded",
        "wrong_size",
        "size_mismatch",
        "checksum_mismatch",
        "url_expired",
        "url_refused",
        "upload_refused",
        KEYS_CHANGE,
    }
)
"""Refusals that a fresh start cures: the manifest, the URL or the bytes once more."""
MAX_FRESH_STARTS = 5
PUT_POLICY = RetryPolicy(attempts=2)
PART_POLICY = RetryPolicy(attempts=4)
"""More patience than for a whole body: what a part costs to repeat is little, and the others go on meanwhile."""

KeepReceipt = Callable[[Submission, Receipt, SignedRecord], Awaitable[None]]
GetClient = Callable[[], Awaitable[ValidatorClient]]


@dataclass(frozen=True)
class Delivery:
    """How it ended."""

    accepted: bool
    code: str
    """Typed reason of a refusal; empty when accepted."""
    reason: str


class Uplink:
    """Delivers submissions to the leader."""

    def __init__(
        self,
        client: GetClient,
        doubt: Callable[[], None],
        meter: UploadMeter,
        patience: Patience,
        storage: UploadCheck,
        part_bytes: int = PART_BYTES,
        keep: KeepReceipt | None = None,
    ) -> None:
        """``client`` gives the present leader's, ``doubt`` is told when it did not answer; ``part_bytes`` is the
        leader's; ``keep`` takes each receipt, and raises ``Retryable`` for one that is not good yet."""
        self._keep = keep
        self._client = client
        self._doubt = doubt
        self._meter = meter
        self._patience = patience
        self._storage = storage
        self._part_bytes = part_bytes
        self._http = HttpClient(connections=LANES)

    async def deliver(self, sent: Submission) -> Delivery:
        """Goes on until the leader has accepted or finally refused it; cancel it when nobody waits for it any more."""
        fresh_starts = 0
        part_hashes = await in_thread(lambda: part_digests(sent.delta, self._part_bytes))

        async def attempt() -> Delivery:
            nonlocal fresh_starts
            over = threading.Event()
            lanes = Lanes(sent.delta, self._part_bytes, self._part_sender(sent, over))
            try:
                return await self._attempt(sent, part_hashes, lanes, over)
            except Rejected as error:
                # URLs that died after some parts of a long upload went through are no failure of it.
                died = error.code == "url_expired" and lanes.through
                fresh_starts += error.code not in NOT_NOW | {KEYS_CHANGE} and not died
                if error.code not in AGAIN | NOT_NOW or fresh_starts > MAX_FRESH_STARTS:
                    return Delivery(False, error.code, error.message)
                self._doubt()
                raise
            except Retryable as fault:
                if fault.retry_after_s is None:  # who asks for patience is there, and leads
                    self._doubt()
                raise
            finally:
                over.set()
                self._meter.end()

        return await self._patience.insist(attempt)

    def close(self) -> None:
        self._http.close()

    async def _attempt(
        self, sent: Submission, part_hashes: tuple[Md5, ...], lanes: Lanes, over: threading.Event
    ) -> Delivery:
        client, more = await self._client(), True
        while more:
            reply = await client.submit(sent.record, part_hashes)
            receipt, record = _check_receipt(reply, sent, client)
            if self._keep is not None:
                await self._keep(sent, receipt, record)
            target, more = reply.upload, False
            if isinstance(target, MultipartTarget):
                await self._put_parts(target, lanes)
                more = target.missing > len(target.parts) > 0
            elif target is not None:
                await self._put_whole(target, sent, over)
        done = await client.complete(sent.round, sent.manifest.shard, sent.manifest.delta.sha256)
        return _outcome(done, sent)

    async def _put_parts(self, target: MultipartTarget, lanes: Lanes) -> None:
        lanes.check(target.parts)
        for part in target.parts:
            self._storage.check_upload(part.url)
        await lanes.run(target, self._meter)
        logger.debug("put {} of {} parts", len(target.parts), lanes.count)

    async def _put_whole(self, target: UploadTarget, sent: Submission, over: threading.Event) -> None:
        self._storage.check_upload(target.url)
        on_progress, subject = self._meter.begin(len(sent.delta)), f"the delta of round {sent.round}"
        await in_thread(lambda: self._send(target, sent.delta, subject, on_progress, PUT_POLICY, over))
        self._meter.end()
        logger.debug("put {} for round {}", format_bytes(len(sent.delta)), sent.round)

    def _part_sender(self, sent: Submission, over: threading.Event) -> PutPart:
        def put(part: PartTarget, body: memoryview, on_progress: Progress) -> str:
            subject = f"part {part.number} of the delta of round {sent.round}"
            return self._send(part, body, subject, on_progress, PART_POLICY, over)

        return put

    def _send(
        self,
        target: UploadTarget | PartTarget,
        body: bytes | memoryview,
        subject: str,
        on_progress: Progress,
        policy: RetryPolicy,
        over: threading.Event,
    ) -> str:
        """In a thread: one body, retried. ``over`` ends the waiting between two tries when nobody wants it any more."""

        def pause(seconds: float) -> None:
            if over.wait(seconds):
                raise Abandoned("the upload is no longer wanted")

        try:
            return upload(
                target.url,
                target.headers,
                body,
                http=self._http,
                subject=subject,
                on_progress=on_progress,
                policy=policy,
                sleep=pause,
            )
        except Rejected as refusal:
            if refusal.code != "url_refused":
                raise
            raise Rejected(KEYS_CHANGE, refusal.message) from refusal


def _check_receipt(reply: SubmissionReply, sent: Submission, client: ValidatorClient) -> tuple[Receipt, SignedRecord]:
    """The receipt must be the asked validator's, for this very manifest: it is what convicts a leader."""
    receipt, record = open_receipt(reply.receipt, sent.manifest.run)
    manifest = sent.manifest
    said = (receipt.signer, receipt.round, receipt.shard, receipt.hotkey, receipt.manifest_sha256, receipt.delta_sha256)
    wanted = (client.server, manifest.round, manifest.shard, manifest.signer, sent.record.sha256, manifest.delta.sha256)
    if said != wanted:
        raise Retryable(f"{client.base_url} answers with a receipt for something else")
    return receipt, record


def _outcome(done: CompleteReply, sent: Submission) -> Delivery:
    if done.accepted:
        return Delivery(True, "", f"the leader has the delta of round {sent.round}")
    if done.code in AGAIN:
        raise Rejected(done.code, done.reason)
    return Delivery(False, done.code, done.reason)
