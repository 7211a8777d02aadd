"""A plan that is being reduced: a leader over HTTP that keeps its books as a validator does, and a reducer for it."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from common import keys
from common.auth import REPLY_SIGNATURE, RequestVerifier, sign_reply
from common.clock import ManualClock, SystemClock
from common.codec.container import HEADER_BYTES
from common.errors import Rejected
from common.merge.butterfly import Candidate
from common.records import decode_submission
from common.reductions import Reduction, open_reduction
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members
from common.spec import ReduceSpec, spec_hash
from common.store.http import HttpClient
from common.store.reader import StoreReader
from common.units import Coldkey, Sha256, ShardId, sha256_hex
from common.wire import (
    Counters,
    ErrorReply,
    Health,
    Heartbeat,
    HeartbeatReply,
    MeanTarget,
    Message,
    Phase,
    ReductionReply,
    ReductionRequest,
    UploadTarget,
    parse,
)
from miner.client import ValidatorClient
from miner.context import Context
from miner.follow import LogView
from miner.heart import Heart
from miner.meter import UploadMeter
from miner.patience import Patience
from miner.places import StoragePlace
from miner.reducer import Reducer
from tests.miner.leader import MINER, PATIENCE_S
from tests.runlog.support import ALICE, MINERS, opened, small_spec
from tests.runlog.world import begin_world
from tests.support.httpserver import Reply, Request, ScriptedServer
from validator.butterfly import view_of
from validator.owners import deal_of
from validator.reducing import Proof, Reducing
from validator.round.deadlines import REDUCE_SHARE

SHARD = ShardId(0)


class Desk:
    """``with Desk() as desk:`` serves; every partition is the miner's."""

    def __init__(self) -> None:
        spec = replace(small_spec(), reduce=ReduceSpec("butterfly", 4, 2, 0))
        self.world = begin_world(spec)
        self.world.append(opened(self.world.state))
        self._members = [self.world.submit(miner, 0) for miner in MINERS]
        self.world.freeze(*self._members)
        self._proofs = {member.delta.sha256: self._proof(member) for member in self._members}
        self.reads = 0
        """Of ranges of deltas, those of headers among them."""
        self.before_read: Callable[[str, int], None] | None = None
        """Called with the key and the first byte, in the reducer's threads."""
        self.damage: Callable[[int, bytes], bytes] | None = None
        """What becomes on the way of what is read from a first byte on."""
        self.taken = threading.Semaphore(0)
        """Released with each word that counts."""
        self._counting = threading.Lock()
        self.words: list[Reduction] = []
        """What was announced, in order."""
        self.put_answers: list[int] = []
        """Statuses that the next uploads are answered with, one each."""
        self.let_beats = threading.Event()
        """While clear, the answer to a heartbeat is made and not sent."""
        self.let_beats.set()
        self.made = threading.Event()
        """An answer to a heartbeat is made."""
        self.restart()
        self._reader = StoreReader(self.world.store)
        self._verifier = RequestVerifier(ALICE.hotkey, 0)
        self._server = ScriptedServer(self._answer)

    def __enter__(self) -> Desk:
        self._server.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._server.__exit__(*raised)

    def restart(self) -> None:
        """Another process leads, which has counted nothing."""
        self.instance = secrets.token_hex(8)
        self.forget()

    def forget(self) -> None:
        """The same process has lost what it had counted."""
        self.reducing = Reducing(self.plan.round, self._plan_sha256, planned_s=0.0, left_s=PATIENCE_S / REDUCE_SHARE)
        counts = {SHARD: len(self.world.memory[SHARD].weights)}
        alone = [Candidate(MINER.hotkey, Coldkey("cold"), None, None)]
        proofs = {SHARD: tuple(self._proofs[member.delta.sha256] for member in accepted_members(self.plan, SHARD))}
        self.reducing.begin(deal_of(self.world.spec, counts, b"seed", alone, proofs), now_s=0.0)

    def freeze_again(self) -> None:
        """The merge does harm: another plan without one of the members."""
        refused = {"decision": "rejected", "code": "guard_suspect", "tokens": 0, "weight": 0.0, "scale": 0.0}
        self._members[-1] = replace(self._members[-1], **refused)  # type: ignore[arg-type]  # fields by name
        self.world.freeze(*self._members, attempt=1)
        self.forget()

    @property
    def plan(self) -> RoundFrozen:
        assert self.world.state.open_round is not None
        assert self.world.state.open_round.plan is not None
        return self.world.state.open_round.plan

    @property
    def missing(self) -> int:
        """Means that the leader has not counted."""
        return len(self.reducing.due(MINER.hotkey))

    @asynccontextmanager
    async def miner(self) -> AsyncIterator[Miner]:
        """A reducer and the heart that brings it its duties."""
        client = ValidatorClient(self._server.url(), ALICE.hotkey, MINER, SystemClock())
        http = HttpClient(connections=1)
        try:
            yield Miner(self, client, http, int(self._server.url().rpartition(":")[2]))
        finally:
            await client.retire()
            http.close()

    # The server.

    @property
    def _plan_sha256(self) -> Sha256:
        assert self.world.state.open_round is not None
        assert self.world.state.open_round.plan_sha256 is not None
        return self.world.state.open_round.plan_sha256

    def _proof(self, place: PlanMember) -> Proof:
        where = self.world.spec.run, place.round, place.shard, place.hotkey, place.delta.sha256
        body = self.world.store.get(keys.delta_key(*where), max_bytes=1 << 30).body
        stored = self.world.store.get(keys.manifest_key(*where), max_bytes=1 << 30).body
        return body[:HEADER_BYTES], decode_submission(stored, self.world.spec.run).manifest.partitions

    def fetch_range(self, key: str, *, start: int, end: int, size_bytes: int) -> bytes:
        """See ``RangeReader.fetch_range``."""
        assert key.endswith(".delta")
        with self._counting:
            self.reads += 1
        if self.before_read is not None:
            self.before_read(key, start)
        found = self._reader.fetch_range(key, start=start, end=end, size_bytes=size_bytes)
        return found if self.damage is None else self.damage(start, found)

    def _answer(self, request: Request) -> Reply:
        if request.path == "/v1/health":
            return self._signed(request, 200, self._health())
        if request.method == "PUT":
            return self._put(request)
        self._verifier.verify(request.headers, request.body, request.method, request.path, SystemClock().wall_ns())
        try:
            return self._signed(request, 200, self._act(request))
        except Rejected as error:
            return self._signed(request, 422, ErrorReply(code=error.code, message=error.message))

    def _act(self, request: Request) -> Message:
        if request.path == "/v1/reductions":
            return self._hand_in(parse(ReductionRequest, request.body))
        reply = self._heartbeat()
        self.made.set()
        assert self.let_beats.wait(PATIENCE_S)
        return reply

    def _heartbeat(self) -> HeartbeatReply:
        asked = self.reducing.asked(MINER.hotkey, now_s=0.0)
        return HeartbeatReply(
            server_ns=SystemClock().wall_ns(),
            leader=ALICE.hotkey,
            instance=self.instance,
            term=1,
            next_seq=self.world.state.next_seq,
            round=None,
            delivered=False,
            score=None,
            reduce=None if asked is None else view_of(self.reducing, asked),
        )

    def _hand_in(self, request: ReductionRequest) -> ReductionReply:
        word, record = open_reduction(request.reduction, self.world.spec.run)
        self.words.append(word)
        self.reducing.announce(word)
        if not self.reducing.brings(word):
            return ReductionReply(uploads=())
        absent = [copy for copy in word.copies if self.world.store.head(word.key_of(copy)) is None]
        if not absent:
            self.reducing.take(word, sha256_hex(record.encode()))
            self.taken.release()
        targets = []
        for copy in absent:
            url = self._server.url(f"/brigade/{word.key_of(copy)}")
            upload = UploadTarget(url=url, headers={}, expires_in_s=PATIENCE_S)
            targets.append(MeanTarget(shard=copy.shard, partition=copy.partition, upload=upload))
        return ReductionReply(uploads=tuple(targets))

    def _put(self, request: Request) -> Reply:
        if self.put_answers:
            return Reply(self.put_answers.pop(0))
        key = request.path.removeprefix("/brigade/")
        parts = keys.parse_key(self.world.spec.run, key)
        assert parts is not None
        assert parts.sha256 == sha256_hex(request.body)
        self.world.store.put(key, request.body)
        return Reply(200, headers={"etag": '"e"'})

    def _health(self) -> Health:
        return Health(
            run=self.world.spec.run,
            spec_sha256=spec_hash(self.world.spec),
            hotkey=ALICE.hotkey,
            server_ns=SystemClock().wall_ns(),
            leading=True,
            version="0",
        )

    def _signed(self, request: Request, status: int, message: Message) -> Reply:
        body = message.model_dump_json().encode()
        nonce = request.headers.get("x-bittensor-nonce", "")
        headers: dict[str, str | None] = {REPLY_SIGNATURE: sign_reply(ALICE, nonce, status, body)} if nonce else {}
        return Reply(status, body, headers)


class SteppingClock(ManualClock):
    """Goes on by ``step_s`` with each look at it."""

    step_s = 0.0

    def monotonic_s(self) -> float:
        self.advance(self.step_s)
        return super().monotonic_s()


class Miner:
    """Beats and reduces when a test says so."""

    def __init__(self, desk: Desk, client: ValidatorClient, http: HttpClient, port: int) -> None:
        async def present() -> ValidatorClient:
            return client

        self._beats = 0
        self.clock = SteppingClock()
        storage = StoragePlace("http", "127.0.0.1", port, "brigade")
        nothing = cast(Any, None)  # of what trains, a reducer uses nothing
        context = Context(
            spec=desk.world.spec,
            signer=MINER,
            clock=self.clock,
            sleep=lambda _: asyncio.sleep(0),
            uniform=lambda: 0.5,
            reader=nothing,
            log=nothing,
            storage=storage,
            worker=nothing,
            cache=nothing,
            session="5" * 16,
            started_s=0.0,
        )
        self.reducer = Reducer(
            context, desk, present, lambda: LogView(desk.world.state), http, sent=lambda: self._beats
        )
        self._heart = Heart(
            cast(Any, _Link(client)),
            UploadMeter(SystemClock().monotonic_s),
            SystemClock(),
            asyncio.sleep,
            1.0,
            Patience("heartbeat", asyncio.sleep),
            leader=lambda: ALICE.hotkey,
            describe=self._describe,
            on_reply=lambda beat, reply: self.reducer.heard(beat.seq, reply),
        )

    async def beat(self) -> None:
        """One heartbeat, and its answer."""
        await self._heart._beat()

    async def turn(self) -> None:
        """A heartbeat, and what its answer asks for."""
        await self.beat()
        await self.reducer.turn()

    def _describe(self) -> Heartbeat:
        self._beats += 1
        return Heartbeat(
            session="5" * 16,
            seq=self._beats,
            phase=Phase.TRAINING,
            round=None,
            revision=None,
            weights_sha256=None,
            round_tokens=0,
            round_steps=0,
            ahead_tokens=0,
            tokens_per_s=0.0,
            loss=None,
            counters=Counters(tokens=0, training_s=0.0, online_s=0.0),
            upload=None,
            note="",
        )


class _Link:
    def __init__(self, client: ValidatorClient) -> None:
        self._client = client

    async def client(self, leader: object) -> ValidatorClient:
        return self._client
