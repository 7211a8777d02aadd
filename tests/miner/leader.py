"""A run for miners to take part in: a bucket over plain HTTP, and a leader that does what the test says.

One scripted server is both. It takes signed requests as a validator does and presigned puts as a store does; the log,
the merge and the chain are the real ones (in memory). A test waits on what the miner is seen to do, never on time.
"""

from __future__ import annotations

import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from common import keys
from common.auth import REPLY_SIGNATURE, RequestVerifier, sign_reply
from common.chain import commitment
from common.chain.commitment import RunLocation
from common.chain.port import Endpoint
from common.clock import SystemClock
from common.data.corpus import folder_corpus
from common.data.prepare import prepare
from common.data.tokenizer import ByteTokenizer
from common.errors import Rejected
from common.identity import KeypairSigner
from common.records import Manifest, Receipt, StoredSubmission, open_manifest, sign_receipt
from common.runlog.entries import LeaderChanged, PlanMember, RoundAborted, RoundFrozen
from common.spec import RunSpec, spec_hash
from common.store.config import StorageConfig
from common.store.memory import MemoryStore
from common.store.port import ObjectMissing
from common.store.s3 import S3Store
from common.units import Coldkey, Hotkey, Sha256, sha256_hex
from common.wire import (
    CompleteReply,
    CompleteRequest,
    ErrorReply,
    Health,
    Heartbeat,
    HeartbeatReply,
    Message,
    RoundView,
    SubmissionReply,
    SubmissionRequest,
    UploadTarget,
    parse,
)
from tests.miner.planning import Decision, member
from tests.runlog.support import ALICE, MINERS, opened, small_spec
from tests.runlog.world import World, begin_world
from tests.support.httpserver import Reply, Request, ScriptedServer
from tests.support.memchain import MemoryWallet, MemoryWorld, Subnet
from tests.support.storage import quick_store

NETUID = 2
PLAIN = {"heartbeat_s": 0.02, "member_timeout_s": 1.0, "drip_s": 0.0, "target_tokens": 1 << 30, "overlap": True}
PATIENCE_S = 60.0  # a test that waits so long has failed
MINER: KeypairSigner = MINERS[0]


def prepare_spec(folder: Path, num_shards: int = 1, **round_changes: Any) -> RunSpec:
    """The small run on a few kilobytes of text, which is left in ``folder``/data. Rounds want more than any test
    trains, and there are no drips unless ``round_changes`` says so."""
    texts = folder / "texts"
    texts.mkdir()
    for number in range(80):
        (texts / f"{number}.txt").write_text(f"Bucket {number} goes from hand to hand. " * 8)
    made = prepare(folder_corpus(texts), ByteTokenizer(), folder / "data")
    base = small_spec(num_shards)
    return replace(
        base,
        data=replace(base.data, dataset=made.dataset),
        round=replace(base.round, **{**PLAIN, **round_changes}),
    )


def put_dataset(store: MemoryStore, dataset: Sha256, folder: Path) -> None:
    """What ``run create`` uploads."""
    store.put(keys.dataset_index_key(dataset), (folder / "index.json").read_bytes())
    for path in folder.glob("*.tokens"):
        store.put(keys.dataset_file_key(dataset, sha256_hex(path.read_bytes())), path.read_bytes())


@dataclass(frozen=True)
class Bucket:
    """A real bucket in place of the scripted one."""

    own: StorageConfig
    """As the leader reaches it."""
    seen: StorageConfig
    """As miners do."""

    def store(self) -> S3Store:
        """The leader's, whose URLs are for miners."""
        store, seen = quick_store(self.own), quick_store(self.seen)
        store.allow_public_reads()
        store.presign_put = seen.presign_put  # type: ignore[method-assign]
        return store


@dataclass
class Seen:
    """What the miner did so far."""

    beats: list[Heartbeat] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    quiet_beats: int = 0
    """Heartbeats without an upload since the last completion."""
    fetches: int = 0
    """Requests for updates."""
    held: list[str] = field(default_factory=list)
    """Paths of requests that were made to wait."""
    unanswered: int = 0
    """API requests that came while the leader was down."""


class Leader:
    """``with Leader(folder) as leader:`` serves; ``leader.order`` is what heartbeats are answered with."""

    def __init__(self, folder: Path, num_shards: int = 1, bucket: Bucket | None = None, **round_changes: Any) -> None:
        self.spec = prepare_spec(folder, num_shards, **round_changes)
        self._real = bucket
        store: Any = bucket.store() if bucket else None
        self.world: World = begin_world(self.spec, store)
        put_dataset(self.world.store, self.spec.data.dataset, folder / "data")
        self.order: str = "train"
        self.stall = ""
        """Why the run stands still, as it tells miners."""
        self.freeze_in_s = 1e6
        self.instance = secrets.token_hex(8)
        self.seen = Seen()
        self._session = ""
        self.down = False
        """No answer to API requests."""
        self.store_down = False
        self.lose_updates = False
        """Updates are answered with 503."""
        self.upload_base = ""
        """Origin of the upload URLs, if another than the storage's."""
        self.let_uploads = threading.Event()
        """While clear, uploads get no answer."""
        self.let_uploads.set()
        self._held_parts: dict[str, threading.Event] = {}
        """Part of a path → set when such requests are answered again."""
        self.findings: list[str] = []
        """Codes that the next deltas are refused with after their upload, one each."""
        self.put_answers: list[int] = []
        """Statuses that the next uploads are answered with, one each."""
        self.refuse: dict[str, ErrorReply] = {}
        """Path → answer with status 422, until removed."""
        self._changed = threading.Condition()
        self.submissions: dict[str, StoredSubmission] = {}
        """What there is a receipt for, by the delta's hash, in the order of the receipts."""
        self.complete: set[str] = set()
        """Of these, the deltas that are there."""
        self.refused_rounds: set[int] = set()
        """Rounds whose manifests are answered with ``round_closed``."""
        self._verifier = RequestVerifier(ALICE.hotkey, 0)
        self._server = ScriptedServer(self._answer)
        self._server._server.handle_error = _say_unless_hung_up  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.chain = self._make_chain()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._server.__exit__(*raised)

    # What a test does.

    def wait_until(self, condition: Callable[[Seen], bool]) -> None:
        """Block until what was seen fulfils ``condition``."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.seen), PATIENCE_S), self.seen.beats[-1:]

    def watch(self, session: str) -> None:
        """Look at the process of this name from now on: heartbeats of one that was killed may still arrive."""
        with self._changed:
            self._session, self.seen = session, Seen()

    def forget(self) -> None:
        """Look at what comes from now on."""
        with self._changed:
            self.seen = Seen()

    def open_round(self) -> None:
        self.order = "train"  # before anybody can see the round: the last round's order is not about this one
        self.world.append(opened(self.world.state))

    def freeze(self, *ours: PlanMember, attempt: int = 0) -> RoundFrozen:
        """Append a plan with a steady member, so that a rejection leaves something."""
        with self._changed:
            return self.world.freeze(self.world.submit(MINERS[1], 0), *ours, attempt=attempt)

    def commit(self, decision: Decision = "accepted", code: str = "") -> None:
        """Plan what was handed in last, whatever was deferred before, and commit."""
        self.world.commit(self.freeze(*self.last(decision, code), *self.late()))

    def last(self, decision: Decision = "accepted", code: str = "") -> list[PlanMember]:
        """The miner's place in the plan of the open round, if it announced anything."""
        mine = self.of_round()
        return [member(mine[-1], decision, code)] if mine else []

    def late(self, decision: Decision = "accepted", code: str = "") -> list[PlanMember]:
        """What the last plan deferred, with what becomes of it; what never came is rejected."""
        found = [self.submissions[m.delta.sha256] for m in self.world.state.deferred]
        there = [stored.manifest.delta.sha256 in self.complete for stored in found]
        return [
            member(stored, decision, code) if ok else member(stored, "rejected", "too_late")
            for stored, ok in zip(found, there, strict=True)
        ]

    def invent(self, stored: StoredSubmission) -> PlanMember:
        """A place in the plan for a delta that the miner never sent, with bytes that merge."""
        other = self.world.submit(MINERS[2], 0)
        data = self.world.store.get(_key(self.spec, MINERS[2].hotkey, other), max_bytes=1 << 30).body
        ours = replace(member(stored), delta=other.delta)
        self.world.store.put(_key(self.spec, MINER.hotkey, ours), data)
        return ours

    @contextmanager
    def holding(self, part: str) -> Iterator[None]:
        """While the block lasts, requests whose path holds ``part`` get no answer; afterwards they get today's."""
        let = self._held_parts[part] = threading.Event()
        try:
            yield
        finally:
            del self._held_parts[part]
            let.set()

    def abort(self) -> None:
        opened_round = self.world.state.open_round
        assert opened_round is not None
        self.world.append(RoundAborted(opened_round.round, opened_round.base_revision, "no_quorum", ()))

    def restart(self, keep_submissions: bool = False) -> None:
        """Another process takes over: it knows what is in the bucket, and here that may be nothing."""
        self.instance = secrets.token_hex(8)
        self.world.append(LeaderChanged(self.instance), term=self.world.state.term + 1)
        if not keep_submissions:
            self.submissions, self.complete = {}, set()

    def of_round(self) -> list[StoredSubmission]:
        """What the miner announced for the open round, the newest last."""
        current = self.world.state.open_round
        assert current is not None
        return [stored for stored in self.submissions.values() if stored.manifest.round == current.round]

    # The server.

    def _answer(self, request: Request) -> Reply:
        if request.method == "PUT":
            self.let_uploads.wait(PATIENCE_S)
        for part, let in list(self._held_parts.items()):
            if part in request.path:
                with self._changed:
                    self.seen.held.append(request.path)
                    self._changed.notify_all()
                let.wait(PATIENCE_S)
        with self._changed:
            reply = self._route(request)
            self._changed.notify_all()
            return reply

    def _route(self, request: Request) -> Reply:
        if request.path.startswith("/brigade/"):
            return self._bucket(request)
        if self.down:
            self.seen.unanswered += 1
            return Reply(503)
        if request.path == "/v1/health":
            return self._signed(request, 200, self._health())
        try:
            self._verifier.verify(request.headers, request.body, request.method, request.path, SystemClock().wall_ns())
            if request.path in self.refuse:
                return self._signed(request, 422, self.refuse[request.path])
            return self._signed(request, 200, self._act(request))
        except Rejected as error:
            return self._signed(request, 422, ErrorReply(code=error.code, message=error.message))

    def _act(self, request: Request) -> Message:
        if request.path == "/v1/heartbeat":
            return self._heartbeat(parse(Heartbeat, request.body))
        if request.path == "/v1/submissions":
            return self._submit(parse(SubmissionRequest, request.body))
        return self._complete(parse(CompleteRequest, request.body))

    def _heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        if beat.session == self._session:
            self.seen.beats.append(beat)
            self.seen.quiet_beats += beat.upload is None
        return HeartbeatReply(
            server_ns=SystemClock().wall_ns(),
            leader=ALICE.hotkey,
            instance=self.instance,
            term=self.world.state.term,
            next_seq=self.world.state.next_seq,
            round=self._round_view(),
            delivered=False,
            score=None,
            stall=self.stall,
        )

    def _round_view(self) -> RoundView | None:
        current = self.world.state.open_round
        if current is None:
            return None
        return RoundView(
            round=current.round,
            base_revision=current.base_revision,
            phase="open",
            instruction=self.order,  # type: ignore[arg-type]
            seconds_left=10.0,
            freeze_in_s=self.freeze_in_s,
            tokens=0,
            target_tokens=self.spec.round.target_tokens,
        )

    def _submit(self, request: SubmissionRequest) -> SubmissionReply:
        manifest, record = open_manifest(request.manifest, self.spec.run)
        self.seen.manifests.append(manifest)
        if not self._takes(manifest) or manifest.round in self.refused_rounds:
            raise Rejected("round_closed", "no such round is open")
        receipt = Receipt(
            1, self.spec.run, ALICE.hotkey, manifest.round, manifest.shard, manifest.signer, record.sha256,
            manifest.delta.sha256, self.world.state.term, received_ms=0,
        )  # fmt: skip
        signed = sign_receipt(receipt, ALICE)
        self.submissions[manifest.delta.sha256] = StoredSubmission(manifest, receipt, record, signed)
        if manifest.delta.sha256 in self.complete:
            return SubmissionReply(receipt=signed.to_json(), upload=None)
        if self._real is not None:
            size_bytes, sha256 = manifest.delta.size_bytes, manifest.delta.sha256
            put = self.world.store.presign_put(manifest.key, size_bytes=size_bytes, sha256=sha256, expires_s=60)
            target = UploadTarget(url=put.url, headers=dict(put.headers), expires_in_s=60.0)
            return SubmissionReply(receipt=signed.to_json(), upload=target)
        headers = {"content-length": str(manifest.delta.size_bytes)}
        url = (self.upload_base or self._server.url()) + f"/brigade/{manifest.key}"
        target = UploadTarget(url=url, headers=headers, expires_in_s=10.0)
        return SubmissionReply(receipt=signed.to_json(), upload=target)

    def _takes(self, manifest: Manifest) -> bool:
        """Of the open round, or deferred by its plan or by the one before."""
        state = self.world.state
        current = state.open_round
        planned = current.plan.members if current and current.plan else ()
        deferred = [m for m in (*state.deferred, *planned) if m.decision == "deferred"]
        late = any((m.round, m.delta) == (manifest.round, manifest.delta) for m in deferred)
        return late or (current is not None and current.plan is None and manifest.round == current.round)

    def _complete(self, request: CompleteRequest) -> CompleteReply:
        self.seen.completed.append(request.delta_sha256)
        self.seen.quiet_beats = 0
        stored = self.submissions.get(request.delta_sha256)
        if stored is None:
            raise Rejected("not_announced", "post the manifest first")
        if self.findings:
            return CompleteReply(accepted=False, code=self.findings.pop(0), reason="as the test says")
        self.world.store.put(stored.manifest.key.replace(".delta", ".json"), stored.encode())
        self.complete.add(request.delta_sha256)
        return CompleteReply(accepted=True, code="", reason="as announced")

    def _bucket(self, request: Request) -> Reply:
        if self.store_down:
            return Reply(503)
        key = request.path.removeprefix("/brigade/")
        if key.endswith(".update"):
            self.seen.fetches += 1
            if self.lose_updates:
                return Reply(503)
        if request.method == "PUT" and self.put_answers:
            return Reply(self.put_answers.pop(0))
        if request.method == "PUT":
            announced = self.submissions[key.rpartition("/")[2].removesuffix(".delta")].manifest.delta
            assert (sha256_hex(request.body), len(request.body)) == (announced.sha256, announced.size_bytes)
            self.world.store.put(key, request.body)
            self.seen.uploads.append(key)
            return Reply(200, headers={"etag": '"e"'})
        try:
            return Reply(200, self.world.store.get(key, max_bytes=1 << 30).body)
        except ObjectMissing:
            return Reply(403)

    def _health(self) -> Health:
        return Health(
            run=self.spec.run,
            spec_sha256=spec_hash(self.spec),
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

    # The surroundings.

    def _make_chain(self) -> MemoryWorld:
        """A subnet whose owner has committed this run, with Alice serving here and the miner registered."""
        chain = MemoryWorld(Coldkey("sudo"))
        location = RunLocation(
            run=self.spec.run,
            spec_sha256=spec_hash(self.spec),
            endpoint=self._real.seen.endpoint if self._real else self._server.url(),
            bucket=self._real.seen.bucket if self._real else "brigade",
            prefix=self._real.seen.prefix if self._real else "",
            public_read=True,
        )
        subnet = Subnet(Coldkey("owner"), Hotkey(self.spec.owner), last_epoch_block=0)
        chain.subnets[NETUID] = subnet
        subnet.commitments[Hotkey(self.spec.owner)] = commitment.encode(location)
        for signer in (ALICE, *MINERS):
            chain.balances_rao[Coldkey(signer.hotkey)] = 10**12
            register(chain, signer)
        port = int(self._server.url().rpartition(":")[2])
        subnet.neurons[0] = replace(subnet.neurons[0], endpoint=Endpoint("127.0.0.1", port))
        return chain


def _key(spec: RunSpec, hotkey: Hotkey, named: PlanMember) -> str:
    return keys.delta_key(spec.run, named.round, named.shard, hotkey, named.delta.sha256)


def _say_unless_hung_up(request: Any, address: Any) -> None:
    """A killed miner hangs up; any other error of the server belongs into the test's output."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def register(chain: MemoryWorld, signer: KeypairSigner) -> None:
    """A seat, without waiting for blocks."""
    from tests.support.memchain import _seat

    _seat(chain.subnets[NETUID], MemoryWallet(signer.hotkey, Coldkey(signer.hotkey)), block=1)
