"""Handing in one submission: manifest → receipt → PUT → complete, repeated until it is through or refused for good.

Every part is idempotent: the same manifest gets the same receipt, the same bytes go to the same key, and a completed
submission may be completed again. So whatever is lost on the way, the answer is to start over; a new leader, or a new
process of the old one, hears of the submission in the same way. Success is the leader's word that it has read the
object and found it as announced, not a status of the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, Retryable
from common.records import open_receipt
from common.store.http import HttpClient
from common.store.retry import RetryPolicy
from common.store.transfer import upload
from common.units import format_bytes
from common.wire import CompleteReply, SubmissionReply, UploadTarget
from miner.client import ValidatorClient
from miner.delta import Submission
from miner.meter import UploadMeter
from miner.patience import Patience
from miner.places import StoragePlace

NOT_NOW = frozenset({"not_leader", "round_closed", "wrong_round"})
"""Refusals of a leader that is not where the log is: asked again until the log ends the round."""
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
    }
)
"""Refusals that a fresh start cures: the manifest, the URL or the bytes once more."""
MAX_FRESH_STARTS = 5
PUT_POLICY = RetryPolicy(attempts=2)

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
        storage: StoragePlace,
    ) -> None:
        """``client`` gives the present leader's, ``doubt`` is told when it did not answer."""
        self._client = client
        self._doubt = doubt
        self._meter = meter
        self._patience = patience
        self._storage = storage
        self._http = HttpClient(connections=1)

    async def deliver(self, sent: Submission) -> Delivery:
        """Goes on until the leader has accepted or finally refused it; cancel it when the round is over."""
        fresh_starts = 0

        async def attempt() -> Delivery:
            nonlocal fresh_starts
            try:
                return await self._attempt(sent)
            except Rejected as error:
                fresh_starts += error.code not in NOT_NOW
                if error.code not in AGAIN | NOT_NOW or fresh_starts > MAX_FRESH_STARTS:
                    return Delivery(False, error.code, error.message)
                self._doubt()
                raise
            except Retryable:
                self._doubt()
                raise
            finally:
                self._meter.end()

        return await self._patience.insist(attempt)

    def close(self) -> None:
        self._http.close()

    async def _attempt(self, sent: Submission) -> Delivery:
        client = await self._client()
        reply = await client.submit(sent.record)
        _check_receipt(reply, sent, client)
        if reply.upload is not None:
            await self._put(reply.upload, sent)
        done = await client.complete(sent.round, sent.manifest.shard, sent.manifest.delta.sha256)
        return _outcome(done, sent)

    async def _put(self, target: UploadTarget, sent: Submission) -> None:
        self._storage.check_upload(target.url)
        on_progress = self._meter.begin(len(sent.delta))

        def put() -> str:
            return upload(
                target.url,
                target.headers,
                sent.delta,
                http=self._http,
                subject=f"the delta of round {sent.round}",
                on_progress=on_progress,
                policy=PUT_POLICY,
            )

        await in_thread(put)
        self._meter.end()
        logger.debug("put {} for round {}", format_bytes(len(sent.delta)), sent.round)


def _check_receipt(reply: SubmissionReply, sent: Submission, client: ValidatorClient) -> None:
    """The receipt must be the asked validator's, for this very manifest: it is what convicts a leader."""
    receipt, _ = open_receipt(reply.receipt, sent.manifest.run)
    said = (receipt.signer, receipt.hotkey, receipt.manifest_sha256, receipt.delta_sha256)
    wanted = (client.server, sent.manifest.signer, sent.record.sha256, sent.manifest.delta.sha256)
    if said != wanted:
        raise Retryable(f"{client.base_url} answers with a receipt for something else")


def _outcome(done: CompleteReply, sent: Submission) -> Delivery:
    if done.accepted:
        return Delivery(True, "", f"the leader has the delta of round {sent.round}")
    if done.code in AGAIN:
        raise Rejected(done.code, done.reason)
    return Delivery(False, done.code, done.reason)
