"""A delta of several parts, a leader that is the uplink's client, and deliveries between the two."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from common.blocking import in_thread
from common.errors import RemoteError
from common.identity import KeypairSigner, SignedRecord
from common.records import Manifest, Receipt, open_manifest, sign_manifest, sign_receipt
from common.store.multipart import MIN_PART_BYTES, Md5
from common.store.s3 import S3Store
from common.units import Hotkey, RoundId, Sha256, sha256_hex
from common.wire import CompleteReply, MultipartTarget, SubmissionReply
from miner.client import ValidatorClient
from miner.delta import Submission
from miner.meter import UploadMeter
from miner.patience import Patience
from miner.places import StoragePlace
from miner.uplink import Delivery, Uplink
from tests.support.submissions import manifest_of
from validator.uploads import Uploads

LEADER = KeypairSigner.from_uri("//Leading")
MINER = KeypairSigner.from_uri("//Uploading")
DELTA = random.Random(5).randbytes(3 * MIN_PART_BYTES + 500_000)
OVERHEAD_BYTES = 40_000
"""Heads of requests, and the leader's own."""


@dataclass(frozen=True)
class Sent:
    """What the uplink needs of a submission."""

    manifest: Manifest
    record: SignedRecord
    delta: bytes

    @property
    def round(self) -> RoundId:
        return self.manifest.round


def submission(delta: bytes = DELTA) -> Submission:
    manifest = manifest_of(MINER.hotkey, round_id=4, base=0, final=True, body=delta)
    return cast(Submission, Sent(manifest, sign_manifest(manifest, MINER), delta))


@dataclass
class Desk:
    """A leader, as the uplink's client. ``tamper`` changes the targets that it names, ``findings`` are its next
    answers to a completion."""

    store: S3Store
    server: Hotkey = LEADER.hotkey
    base_url: str = "http://leader"
    tamper: Callable[[MultipartTarget], MultipartTarget] = lambda target: target
    findings: list[RemoteError] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)
    """Numbers of the parts that it asked for, at each announcement."""

    async def submit(self, record: SignedRecord, parts: tuple[Md5, ...]) -> SubmissionReply:
        manifest, _ = open_manifest(record.to_json(), "demo")
        receipt = Receipt(
            schema=1,
            run="demo",
            signer=self.server,
            round=manifest.round,
            shard=manifest.shard,
            hotkey=manifest.signer,
            manifest_sha256=record.sha256,
            delta_sha256=manifest.delta.sha256,
            term=1,
            received_ms=0,
        )
        target = await in_thread(lambda: Uploads(self.store, MIN_PART_BYTES).target(manifest, parts, 60))
        if isinstance(target, MultipartTarget):
            self.asked.append([part.number for part in target.parts])
            target = self.tamper(target)
        return SubmissionReply(receipt=sign_receipt(receipt, LEADER).to_json(), upload=target)

    async def complete(self, round_id: int, shard: int, delta: Sha256) -> CompleteReply:
        if self.findings:
            raise self.findings.pop(0)
        manifest = submission().manifest if delta == sha256_hex(DELTA) else submission(b"small").manifest
        await in_thread(lambda: Uploads(self.store, MIN_PART_BYTES).finish(manifest))
        body = await in_thread(lambda: self.store.get(manifest.key, max_bytes=len(DELTA)).body)
        good = sha256_hex(body) == delta
        return CompleteReply(accepted=good, code="" if good else "checksum_mismatch", reason="read")


def uplink_to(desk: Desk, meter: UploadMeter | None = None, endpoint: str = "") -> Uplink:
    async def client() -> ValidatorClient:
        return cast(ValidatorClient, desk)

    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    url = urlsplit(endpoint or desk.store.config.endpoint)
    place = StoragePlace(url.scheme, url.hostname or "", url.port or 80, desk.store.config.bucket)
    return Uplink(
        client, lambda: None, meter or UploadMeter(time.monotonic), Patience("sending", at_once), place, MIN_PART_BYTES
    )


def deliver(desk: Desk, meter: UploadMeter | None = None, delta: bytes = DELTA) -> Delivery:
    uplink = uplink_to(desk, meter)
    try:
        return asyncio.run(uplink.deliver(submission(delta)))
    finally:
        uplink.close()


def stored(desk: Desk, delta: bytes = DELTA) -> bytes:
    return desk.store.get(submission(delta).manifest.key, max_bytes=len(DELTA)).body
