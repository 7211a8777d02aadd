"""Probes of the miner's link to the storage: one small transfer that the leader orders, and times by its own clock.

It is made beside the training. Only an idle link tells anything: while the miner's own transfers use it the answer is
``busy``, and a probe gives way to an upload that begins meanwhile. An order is done once; what hinders it is said in
the log, and the leader counts the silence. Nothing here ends or delays anything else. Bytes go to the run's storage
alone, and come from it alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, RemoteError, Retryable
from common.keys import probe_key
from common.probes import downlink_proof, uplink_bytes
from common.store.http import HttpClient
from common.store.port import ObjectReader
from common.store.retry import RetryPolicy
from common.store.transfer import upload
from common.units import Sha256
from common.wire import HeartbeatReply, ProbeAnswer, ProbeOrder, UploadTarget
from miner.context import Context
from miner.meter import Abandoned
from miner.uplink import GetClient

PUT_POLICY = RetryPolicy(attempts=2)
LinkKind = Literal["uplink", "downlink"]


class Prober:
    """Does what one process is ordered. The event loop owns it."""

    def __init__(
        self,
        context: Context,
        reader: ObjectReader,
        client: GetClient,
        http: HttpClient,
        busy: Callable[[LinkKind], bool],
    ) -> None:
        """``client`` gives the present leader's; ``busy`` whether own work uses the link, and is asked by threads."""
        self._context = context
        self._reader = reader
        self._client = client
        self._http = http
        self._busy = busy
        self._newest: ProbeOrder | None = None
        self._ordered = asyncio.Event()

    def heard(self, reply: HeartbeatReply) -> None:
        """Take in the leader's answer to a heartbeat."""
        if reply.probe is not None:
            self._newest = reply.probe
            self._ordered.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            order, self._newest = self._newest, None
            if order is not None:
                await self._obey(order)

    async def _obey(self, order: ProbeOrder) -> None:
        over = threading.Event()
        try:
            async with asyncio.timeout(order.seconds_left):
                await self._tell(await self._answer(order, over))
        except TimeoutError:
            logger.warning("a probe of the {} was not done within {:g} s", order.kind, order.seconds_left)
        except RemoteError as error:
            logger.warning("a probe of the {} can't be made: {}", order.kind, error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours; nothing but the probe is to suffer from it
            logger.opt(exception=error).error("a probe of the {} failed", order.kind)
        finally:
            over.set()

    async def _answer(self, order: ProbeOrder, over: threading.Event) -> ProbeAnswer:
        busy = ProbeAnswer(nonce=order.nonce, busy=True)
        if self._busy(order.kind):
            return busy
        try:
            proof = await in_thread(lambda: self._transfer(order, over))
        except Abandoned:
            return busy
        if self._busy(order.kind):
            return busy  # it has begun meanwhile, so that the two shared the link
        return ProbeAnswer(nonce=order.nonce, proof=proof)

    def _transfer(self, order: ProbeOrder, over: threading.Event) -> Sha256 | None:
        """In a thread. Raises ``Abandoned`` when the link is wanted, or nobody waits any more, and ``RemoteError``."""
        if order.upload is not None:
            self._put(order, order.upload, over)
            return None
        key = probe_key(self._context.spec.run, self._context.signer.hotkey, "down")
        body = self._reader.fetch(key, max_bytes=order.size_bytes, size_bytes=order.size_bytes)
        return downlink_proof(order.nonce, body)

    def _put(self, order: ProbeOrder, target: UploadTarget, over: threading.Event) -> None:
        def give_way(sent_bytes: int) -> None:
            if over.is_set() or self._busy(order.kind):
                raise Abandoned("the probe gives way")

        def pause(seconds: float) -> None:
            if over.wait(seconds):
                raise Abandoned("nobody waits for the probe any more")

        self._context.storage.check_upload(target.url)
        body = uplink_bytes(order.nonce, order.size_bytes)
        upload(
            target.url,
            target.headers,
            body,
            http=self._http,
            subject="the probe of the uplink",
            on_progress=give_way,
            policy=PUT_POLICY,
            sleep=pause,
        )

    async def _tell(self, answer: ProbeAnswer) -> None:
        """Until the leader has heard it: a lost reply must not look like a slow link."""
        patience = self._context.patience("answering a probe")
        while True:
            try:
                client = await self._client()
                reply = await client.probed(answer)
            except Rejected as refusal:
                # The first try may have arrived, or another process leads by now.
                logger.debug("the answer to a probe was not taken: {}", refusal)
                return
            except Retryable as fault:
                await patience.bear(fault)
                continue
            if not reply.counted:
                logger.debug("a probe did not count: {}", reply.reason)
            return
