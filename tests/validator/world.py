"""A whole run in one process for the validator's tests: memory store, memory chain, manual clock, scripted miners.

Nothing sleeps: time moves when a test moves it. The miners speak to the service as the routes do, encode real deltas
of the tiny model and put them through presigned URLs.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from common import keys
from common.clock import ManualClock
from common.codec.container import encode, partition_hashes
from common.codec.params import F32, delta_params
from common.data.corpus import folder_corpus
from common.data.dataset import Dataset, open_dataset
from common.data.prepare import prepare
from common.data.stream import SampleStream
from common.data.tokenizer import tokenizer_named
from common.identity import KeypairSigner
from common.model.flat import build_shard
from common.model.loss import training_loss
from common.model.shards import plan_shards
from common.records import Manifest, ObjectRef, SampleRange, sign_manifest
from common.runlog.casput import Patience
from common.runlog.genesis import create_run
from common.runlog.materialise import materialise
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.spec import DataSpec, RunSpec
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.store.retry import RetryPolicy
from common.units import Coldkey, Revision, Sha256, ShardId, sha256_hex
from common.wire import (
    CompleteReply,
    CompleteRequest,
    Counters,
    Heartbeat,
    HeartbeatReply,
    Phase,
    SubmissionReply,
    SubmissionRequest,
    UploadProgress,
    UploadTarget,
)
from tests.support.memchain import MemoryWallet, MemoryWorld
from tests.support.specs import OWNER, VALIDATOR, tiny_spec
from validator.api.security import Caller
from validator.membership import Seat, seat_of
from validator.process import Parts, Validator, assemble
from validator.scoring.evaluate import Evaluator

SHARD = ShardId(0)
STEPS = 4
WORK = STEPS * 32
"""Tokens that a scripted miner trains for a round: 4 steps of 2 × 16."""
AT_ONCE = Patience(policy=RetryPolicy(attempts=2, first_wait_s=0.0, longest_wait_s=0.0), sleep=lambda _: None)


def make_dataset(folder: Path) -> Dataset:
    """A few kilobytes of text, with some held out."""
    texts = folder / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number}.txt").write_text(f"file {number}: the quick brown fox jumps over the lazy dog. " * 60)
    prepare(folder_corpus(texts), tokenizer_named("bytes"), folder / "data", None)
    return open_dataset(folder / "data")


class World:
    """The outside of a validator, which lives on when the validator is killed."""

    def __init__(self, dataset: Dataset, store: MemoryStore | None = None, **changes: Any) -> None:
        """``store`` is the bucket, if not one in memory; ``changes`` replace fields of the spec."""
        torch.set_num_threads(1)
        self.dataset = dataset
        self.clock = ManualClock(now_s=1000.0)
        usual = tiny_spec(data=DataSpec(dataset=dataset.id, tokenizer="bytes", seq_len=16), netuid=2)
        limits = dataclasses.replace(usual.round, target_tokens=3 * WORK, quorum_tokens=WORK)
        self.spec: RunSpec = dataclasses.replace(usual, **{"round": limits, **changes})
        self.store = store or MemoryStore(self.clock)
        self.chain_world = MemoryWorld(Coldkey("sudo"))
        create_run(self.store, self.spec, OWNER, self.clock, patience=AT_ONCE)
        self.evaluator = Evaluator(self.spec, dataset)
        self.miners: list[Miner] = []
        self.trained: dict[tuple[Sha256, int, str, int], F32] = {}

    async def begin(self, miners: int = 3) -> None:
        """Register everybody."""
        owner = MemoryWallet(OWNER.hotkey, Coldkey("owner-cold"))
        self.chain_world.balances_rao[owner.coldkey_ss58] = 10**15
        netuid = await self.chain_world.port(owner).register_subnet()
        assert netuid == self.spec.netuid
        await self.chain_world.port(owner).start_subnet(netuid)
        sudo = MemoryWallet(OWNER.hotkey, Coldkey("sudo"))
        await self.chain_world.port(sudo).set_hyperparameters(
            netuid, tempo=20, weights_rate_limit_blocks=10, commit_reveal=False, serving_rate_limit_blocks=0
        )
        await self._register(VALIDATOR)
        for number in range(miners):
            await self.join(number)

    async def join(self, number: int) -> Miner:
        """One more miner."""
        signer = KeypairSigner.from_uri(f"//Miner{number}")
        await self._register(signer)
        miner = Miner(self, signer)
        self.miners.append(miner)
        return miner

    async def _register(self, signer: KeypairSigner) -> None:
        coldkey = Coldkey(f"cold-{signer.hotkey[:10]}")
        self.chain_world.balances_rao[coldkey] = 10**15
        await self.chain_world.port(MemoryWallet(signer.hotkey, coldkey)).register(self.spec.netuid)

    def seat(self, signer: KeypairSigner) -> Seat:
        found = next(n for n in self.chain_world.subnet(self.spec.netuid).neurons if n.hotkey == signer.hotkey)
        return seat_of(found)

    def validator(self, until: int | None = None, **changes: Any) -> Validator:
        """A fresh validator process over what the world holds; ``changes`` replace parts of it."""
        wallet = MemoryWallet(VALIDATOR.hotkey, Coldkey(f"cold-{VALIDATOR.hotkey[:10]}"))
        parts = Parts(
            spec=self.spec,
            signer=VALIDATOR,
            store=self.store,
            chain=self.chain_world.port(wallet),
            clock=self.clock,
            evaluator=self.evaluator,
            version="test",
            until_revision=None if until is None else Revision(until),
            patience=AT_ONCE,
        )
        return assemble(dataclasses.replace(parts, **changes))

    def log(self) -> RunState:
        """The run as anybody reads it."""
        with self.unwatched():
            return LogReader(StoreReader(self.store), self.spec).catch_up()

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Storage operations in here are not the validator's."""
        watcher, self.store.before = self.store.before, None
        try:
            yield
        finally:
            self.store.before = watcher

    def slots(self) -> list[bytes]:
        """Every slot of the log."""
        infos = self.store.list(f"{keys.run_prefix(self.spec.run)}log/")
        return [self.store.get(info.key, max_bytes=1 << 20).body for info in infos]


class Made(NamedTuple):
    """A submission as its miner holds it."""

    manifest: Manifest
    body: bytes


def honest(delta: F32) -> F32:
    """The delta as it was trained."""
    return delta


@dataclass
class Miner:
    """A scripted miner."""

    world: World
    signer: KeypairSigner
    session: str = field(default_factory=lambda: secrets.token_hex(8))
    seq: int = 0
    round: int | None = None
    tokens: int = 0
    total: int = 0
    phase: Phase = Phase.TRAINING
    submitted: int | None = None
    """Round that it delivered for."""
    twist: Callable[[F32], F32] = honest
    """What it makes of its deltas before it sends them."""
    silent: bool = False
    upload: UploadProgress | None = None
    """What it says to be sending."""
    host: str = ""
    """Address that its requests come from."""
    boast: float = 1.0
    """Times that it claims of its speed and of its counter."""

    @property
    def caller(self) -> Caller:
        return Caller(self.world.seat(self.signer), b"", self.host)

    def train(self, tokens: int) -> None:
        """Say to have trained so many tokens more, up to the round's work."""
        tokens = min(tokens, WORK - self.tokens)
        self.tokens += tokens
        self.total += tokens

    def beat(self, validator: Validator) -> HeartbeatReply:
        """One heartbeat; takes up the open round."""
        self.seq += 1
        beat = Heartbeat(
            session=self.session,
            seq=self.seq,
            phase=self.phase,
            round=self.round,
            revision=None,
            weights_sha256=None,
            round_tokens=self.tokens,
            round_steps=self.tokens // 32,
            ahead_tokens=0,
            tokens_per_s=100.0 * self.boast,
            loss=None,
            counters=Counters(
                tokens=int(self.total * self.boast), training_s=self.total / 100.0, online_s=float(self.seq)
            ),
            upload=self.upload,
            note="",
        )
        reply = validator.service.heartbeat(self.caller, beat)
        if reply.round is not None and reply.round.round != self.round:
            self.round, self.tokens = reply.round.round, 0
        return reply

    async def deliver(self, validator: Validator, complete: bool = True, final: bool = True, steps: int = 0) -> Made:
        """Encode, announce, put, and say so; of all steps unless fewer are asked for."""
        made = self.make(self.world.log(), final, steps or STEPS)
        reply = await self.announce(validator, made)
        if reply.upload is not None:
            self.put(reply, made)
            if complete:
                assert (await self.complete(validator, made)).accepted
        if final:
            self.submitted = made.manifest.round
        return made

    async def drip(self, validator: Validator, steps: int) -> Made:
        """Deliver what it has so far."""
        return await self.deliver(validator, final=False, steps=steps)

    async def announce(self, validator: Validator, made: Made) -> SubmissionReply:
        """Post the manifest."""
        request = SubmissionRequest(manifest=sign_manifest(made.manifest, self.signer).to_json())
        return await validator.service.submit(self.caller, request)

    def put(self, reply: SubmissionReply, made: Made) -> None:
        """Put the bytes where the reply says."""
        assert isinstance(reply.upload, UploadTarget)
        self.world.store.redeem_put(reply.upload.url, reply.upload.headers, made.body)

    async def complete(self, validator: Validator, made: Made) -> CompleteReply:
        """Say that the bytes are there."""
        manifest = made.manifest
        done = CompleteRequest(round=manifest.round, shard=0, delta_sha256=manifest.delta.sha256)
        return await validator.service.complete(self.caller, done)

    def make(self, state: RunState, final: bool = True, steps: int = STEPS) -> Made:
        """A real delta on the open round's base, and its manifest."""
        assert state.open_round is not None
        world, opened = self.world, state.open_round
        node = state.revisions[opened.base_revision]
        delta = self.twist(self._trained(state, steps))
        params = delta_params(world.spec.codec, node.revision)
        body = encode(delta, params)
        samples = steps * world.spec.inner.batch_size
        digest = sha256_hex(body)
        manifest = Manifest(
            schema=1,
            run=world.spec.run,
            signer=self.signer.hotkey,
            key=keys.delta_key(world.spec.run, opened.round, SHARD, self.signer.hotkey, digest),
            round=opened.round,
            base_revision=node.revision,
            base_sha256=node.sha256,
            shard=SHARD,
            delta=ObjectRef(digest, len(body)),
            final=final,
            tokens=samples * world.spec.data.seq_len,
            steps=steps,
            samples=(SampleRange(opened.round, node.revision, 0, samples),),
            trace_root=Sha256("0" * 64),
            partitions=partition_hashes(body, len(delta), params, world.spec.reduce.partitions),
        )
        return Made(manifest, body)

    def _trained(self, state: RunState, steps: int) -> F32:
        """The delta of this round's steps; the same steps are taken once in a test."""
        assert state.open_round is not None
        world, node = self.world, state.revisions[state.open_round.base_revision]
        place = (node.sha256, state.open_round.round, str(self.signer.hotkey), steps)
        if place not in world.trained:
            with world.unwatched():
                base = materialise(StoreReader(world.store), state, node.revision).shards[0].weights
            stream = SampleStream(
                world.dataset, node.sha256, state.open_round.round, self.signer.hotkey, world.spec.data.seq_len
            )
            world.trained[place] = sgd(world.spec, base, stream, steps) - base
        return world.trained[place]


def sgd(spec: RunSpec, base: F32, stream: SampleStream, steps: int) -> F32:
    """A few plain steps: enough for a delta that lowers the loss."""
    flat = build_shard(spec.model, plan_shards(spec.model, 1)[0], base)
    for step in range(steps):
        samples = torch.from_numpy(stream.batch(step * spec.inner.batch_size, spec.inner.batch_size))
        flat.zero_grads()
        training_loss(flat.module(samples[:, :-1]), samples[:, 1:]).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            flat.weights.sub_(flat.grads, alpha=0.5)
    return flat.take()


async def drive(world: World, validator: Validator, until_revision: int, most_steps: int = 400) -> None:
    """Let validator and miners work until the log has the revision. Time moves a little with each step."""
    for _ in range(most_steps):
        await validator.driver.step()
        if validator.board.journal.state.head >= until_revision and validator.board.round is None:
            return
        await play(world, validator)
        world.clock.advance(0.25)
    raise AssertionError(f"not there after {most_steps} steps: {validator.board.waiting_for}")


async def play(world: World, validator: Validator) -> None:
    """One turn of every miner."""
    for miner in world.miners:
        await turn(miner, validator)


async def turn(miner: Miner, validator: Validator) -> None:
    """Beat, and do as told."""
    if miner.silent:
        return
    reply = miner.beat(validator)
    if reply.round is None:
        return
    if reply.round.instruction == "train":
        miner.phase = Phase.TRAINING
        miner.train(32)
    elif reply.round.instruction == "submit" and not reply.delivered:
        miner.phase = Phase.UPLOADING
        await miner.deliver(validator)
    else:
        miner.phase = Phase.WAITING


async def steps(world: World, validator: Validator, count: int, seconds: float = 0.25) -> None:
    """Let everybody take turns while time moves."""
    for _ in range(count):
        await validator.driver.step()
        await play(world, validator)
        world.clock.advance(seconds)
