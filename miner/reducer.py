"""A miner's duties in the butterfly: the mean of a partition, from just its byte range of every accepted delta.

They come with the replies to heartbeats and are done beside the training; what a leader still asks for when it has had
time to count it, or after a restart, is done again (``duties.py``). Means are handed in piece by piece (``means.py``),
so that what is done early counts even when the rest is late. Memory is bounded: the means of one turn are held, of
earlier ones what fits beside them, and one partition is added up at a time. Nothing here ends the process: a duty that
can't be done is left to the leader, and the log says why.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import chain

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, RemoteError
from common.merge.partition import PartitionMean
from common.records import ObjectRef
from common.reductions import Copy, Reduction, sign_reduction
from common.runlog.entries import RoundFrozen
from common.spec import SCHEMA
from common.store.http import HttpClient
from common.store.port import RangeReader
from common.store.retry import RetryPolicy
from common.store.transfer import upload
from common.units import RoundId, Sha256, ShardId
from common.wire import HeartbeatReply, MeanTarget
from miner.context import Context
from miner.duties import Asked, Duties, Place, place_of
from miner.follow import LogView
from miner.means import PIECES, MeanMaker, Pieces
from miner.uplink import GetClient

PUT_POLICY = RetryPolicy(attempts=3)


class Reducer:
    """Does the duties of one process. The event loop owns it."""

    def __init__(
        self,
        context: Context,
        reader: RangeReader,
        client: GetClient,
        view: Callable[[], LogView],
        http: HttpClient,
        sent: Callable[[], int],
    ) -> None:
        """``client`` gives the present leader's; ``view`` the log as it was last read; ``sent`` as in ``Duties``."""
        self._context = context
        self._maker = MeanMaker(context.spec, reader)
        self._client = client
        self._view = view
        self._http = http
        self._duties = Duties(sent)
        self._newest: Asked | None = None
        self._asked = asyncio.Event()
        self._patience = context.patience("reducing")
        self.at_work = False
        """Whether it reads or puts now."""

    def heard(self, beat: int, reply: HeartbeatReply) -> None:
        """The newest reply, and the number of the heartbeat that it answers."""
        opened = self._view().state.open_round
        self._duties.end(opened.plan_sha256 if opened else None)
        self._newest = Asked(reply.reduce, reply.instance, beat) if reply.reduce else None
        if self._newest is not None:
            self._asked.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self.at_work = True
            try:
                await self.turn()
            except RemoteError as error:
                self.at_work = False
                await self._patience.bear(error)
            else:
                self.at_work = False
                self._patience.relax()

    async def turn(self) -> None:
        """Of what was asked for last and is due, as much as may be held; for more the next reply asks again."""
        asked, opened = self._newest, self._view().state.open_round
        if asked is None or opened is None or opened.plan is None or opened.plan_sha256 != asked.view.plan_sha256:
            return  # the log is not there yet, or has gone on: the next reply tells
        plan, over = opened.plan, threading.Event()
        duties = self._duties.next(asked, lambda duty: self._maker.slice_of(duty).mean_bytes)
        if not duties:
            return  # the reply was made before the leader counted what was handed in
        try:
            async with asyncio.timeout(asked.view.seconds_left):
                held = {place_of(duty): mean for duty in duties if (mean := self._duties.held(duty)) is not None}
                missing = [duty for duty in duties if place_of(duty) not in held]
                made = self._maker.means(plan, Sha256(asked.view.plan_sha256), missing, over)
                piece_s = asked.view.seconds_left / PIECES
                pieces = Pieces(chain(held.items(), made), piece_s, self._context.clock.monotonic_s)
                while piece := await in_thread(pieces.next):
                    self._duties.hold(asked, piece)
                    await self._hand_in(plan, asked, piece, over)
        except TimeoutError:
            logger.warning("round {}: the time to reduce is over; the leader does the rest", plan.round)
        finally:
            over.set()

    async def _hand_in(
        self, plan: RoundFrozen, asked: Asked, means: dict[Place, PartitionMean], over: threading.Event
    ) -> None:
        word = self._word(plan, Sha256(asked.view.plan_sha256), means)
        record = sign_reduction(word, self._context.signer)
        client = await self._client()
        reply = await client.reduced(record)
        for target in reply.uploads:
            mean = means.get((ShardId(target.shard), target.partition))
            if mean is None:
                raise Rejected("url_refused", "the leader asks for a mean that it was not told of")
            await self._put(target, mean, over)
        if reply.uploads and (await client.reduced(record)).uploads:
            raise Rejected("not_uploaded", "the leader does not find the means that were put")
        self._duties.count(asked, means)
        logger.bind(event="reduced", round=int(plan.round)).info("round {}: handed in {} means", plan.round, len(means))

    async def _put(self, target: MeanTarget, mean: PartitionMean, over: threading.Event) -> None:
        self._context.storage.check_upload(target.upload.url)
        url, headers, body = target.upload.url, target.upload.headers, mean.body
        subject = f"the mean of partition {target.partition}"
        pause = partial(_wait, over)
        await in_thread(
            lambda: upload(url, headers, body, http=self._http, subject=subject, policy=PUT_POLICY, sleep=pause)
        )

    def _word(self, plan: RoundFrozen, plan_sha256: Sha256, means: dict[Place, PartitionMean]) -> Reduction:
        copies = tuple(
            Copy(shard, partition, ObjectRef(mean.sha256, len(mean.body)), mean.inputs_sha256)
            for (shard, partition), mean in means.items()
        )
        context = self._context
        return Reduction(SCHEMA, context.spec.run, context.signer.hotkey, RoundId(plan.round), plan_sha256, copies)


def _wait(over: threading.Event, seconds: float) -> None:
    if over.wait(seconds):
        raise Rejected("too_late", "nobody waits for it any more")
