"""A whole small run in a memory store: real deltas, manifests, receipts, merges, snapshots, reports, a lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from common import keys
from common.clock import ManualClock
from common.codec.container import encode, partition_hashes
from common.codec.params import delta_params
from common.identity import KeypairSigner, SignedRecord
from common.model.shards import plan_shards
from common.model.snapshot import encode_snapshot
from common.records import (
    Manifest,
    ObjectRef,
    Receipt,
    SampleRange,
    StoredSubmission,
    sign_manifest,
    sign_receipt,
)
from common.reductions import Copy, Reduction, sign_reduction
from common.reports import MemberReport, Report, sign_report
from common.runlog.commands import put_command, resume_command, rollback_command
from common.runlog.entries import (
    EntryData,
    Paused,
    PlanMember,
    Resumed,
    RevisionCommitted,
    RolledBack,
    RoundFrozen,
    ShardState,
)
from common.runlog.genesis import create_run
from common.runlog.lease import LeaseKeeper
from common.runlog.materialise import pack
from common.runlog.recompute import MergeResult, merge_round
from common.runlog.remerge import ShardMemory, read_delta, read_plan, rebuild, start_outer
from common.runlog.rules import MAX_FAILURES, plan_damping, plan_tokens
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.spec import RunSpec
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, Uid, sha256_hex
from tests.runlog.support import (
    ALICE,
    BOB,
    MINERS,
    OWNER,
    aborted,
    no_patience,
    opened,
    slot,
    small_spec,
    takeover,
)


@dataclass
class World:
    """A run under way, led by Alice."""

    spec: RunSpec
    store: MemoryStore
    state: RunState
    memory: dict[ShardId, ShardMemory]

    @property
    def reader(self) -> StoreReader:
        return StoreReader(self.store)

    def append(self, data: EntryData, term: int | None = None) -> None:
        writer = LogWriter(self.store, self.spec, ALICE, ManualClock(), patience=no_patience())
        self.state = writer.append(self.state, data, "because", self.state.term if term is None else term)

    def submit(
        self,
        miner: KeypairSigner,
        shard: int,
        accepted: bool = True,
        put: bool = True,
        lie: Mapping[str, object] | None = None,
        drip: int = 0,
    ) -> PlanMember:
        """A miner's delta of the open round with its manifest and receipt, and its place in the plan. ``drip`` is the
        number of one that it sent before the final one; 0 for that."""
        assert self.state.open_round is not None
        base = self.state.open_round.base_revision
        manifest, delta = self._manifest(miner, ShardId(shard), drip)
        if lie:
            manifest = self._lying(manifest, lie)
        record = sign_manifest(manifest, miner)
        receipt = Receipt(
            1,
            self.spec.run,
            ALICE.hotkey,
            manifest.round,
            manifest.shard,
            miner.hotkey,
            record.sha256,
            manifest.delta.sha256,
            self.state.term,
            received_ms=0,
        )
        if put:
            stored = StoredSubmission(manifest, receipt, record, sign_receipt(receipt, ALICE))
            self.store.put(manifest.key, delta)
            self.store.put(manifest.key.replace(".delta", ".json"), stored.encode())
        return PlanMember(
            shard=manifest.shard,
            hotkey=miner.hotkey,
            round=manifest.round,
            base_revision=base,
            uid=Uid(3),
            registered_block=1,
            delta=manifest.delta,
            manifest_sha256=record.sha256,
            tokens_claimed=manifest.tokens,
            tokens=manifest.tokens if accepted else 0,
            decision="accepted" if accepted else "rejected",
            code="" if accepted else ("duplicate" if put else "not_uploaded"),
            reason="as it was judged",
            weight=32.0 if accepted else 0.0,
            scale=16.0 if accepted else 0.0,
        )

    def freeze(self, *members: PlanMember, attempt: int = 0) -> RoundFrozen:
        assert self.state.open_round is not None
        ordered = tuple(sorted(members, key=lambda m: (m.shard, m.hotkey, m.round)))
        opened_round = self.state.open_round
        plan = RoundFrozen(opened_round.round, opened_round.base_revision, attempt, 1.0, ordered)
        plan = replace(plan, damping=plan_damping(self.spec, plan))
        self.append(plan)
        return plan

    def commit(self, plan: RoundFrozen) -> None:
        """Merge as a leader does, store update and snapshot, then commit."""
        revision = self.state.next_revision
        shards = tuple(self._merge(plan, revision, shard) for shard in sorted(self.memory))
        self.append(RevisionCommitted(plan.round, revision, plan.base_revision, plan_tokens(self.spec, plan), shards))

    def reduce(self, miner: KeypairSigner) -> list[str]:
        """An owner's copy of partition 0 of every shard and its word for them, as the leader keeps them: the keys."""
        opened_round = self.state.open_round
        assert opened_round is not None
        assert opened_round.plan_sha256 is not None
        bodies = {shard: b"mean of shard %d in round %d" % (shard, opened_round.round) for shard in self.memory}
        copies = tuple(
            Copy(shard, 0, ObjectRef(sha256_hex(body), len(body)), sha256_hex(b"inputs"))
            for shard, body in bodies.items()
        )
        word = Reduction(1, self.spec.run, miner.hotkey, opened_round.round, opened_round.plan_sha256, copies)
        record = sign_reduction(word, miner).encode()
        key = keys.reduction_key(self.spec.run, word.round, miner.hotkey, sha256_hex(record))
        self.store.put(key, record)
        for copy in copies:
            self.store.put(word.key_of(copy), bodies[copy.shard])
        return [key, *(word.key_of(copy) for copy in copies)]

    def pause_for_failures(self) -> None:
        """As many rounds as it takes end for what was delivered; then the run is paused."""
        for _ in range(MAX_FAILURES):
            self.append(opened(self.state))
            self.append(aborted(self.state, "loss_guard"))
        self.append(Paused("loss_guard", ("the held-out loss would have gone from 5.0 to 6.0",)))

    def order(self, record: SignedRecord) -> Sha256:
        """Lay one of the owner's commands into the bucket."""
        return put_command(self.store, record)

    def roll_back(self, revision: int) -> None:
        """The owner orders it, and the leader obeys."""
        target = Revision(revision)
        self.append(RolledBack(target, self.order(rollback_command(self.state, OWNER, 1, target))))
        self.memory = {s: rebuild(self.reader, self.state, target, s)[0] for s in self.memory}

    def run_round(self) -> None:
        """One round in which every miner is accepted on every shard."""
        self.append(opened(self.state))
        members = [self.submit(miner, shard) for shard in self.memory for miner in MINERS]
        self.commit(self.freeze(*members))

    def report(self, round_id: int | None = None, **changes: object) -> str:
        """Bob's report of a round, by default the last one that made a revision; ``changes`` are its lies."""
        last = self.state.head_node
        assert last.round is not None
        plan = read_plan(self.reader, self.state, last)
        told = Report(1, self.spec.run, BOB.hotkey, last.round, last.revision, True, 5.5, 5.0, _reported(plan))
        told = replace(told, round=last.round if round_id is None else RoundId(round_id))
        data = sign_report(replace(told, **changes), BOB).encode()  # type: ignore[arg-type]
        key = keys.report_key(self.spec.run, BOB.hotkey, replace(told, **changes).round, sha256_hex(data))  # type: ignore[arg-type]
        self.store.put(key, data)
        return key

    def _manifest(self, miner: KeypairSigner, shard: ShardId, drip: int) -> tuple[Manifest, bytes]:
        opened_round = self.state.open_round
        assert opened_round is not None
        count = len(self.memory[shard].weights)
        seed = [opened_round.round, shard, MINERS.index(miner), *([drip] if drip else [])]
        values = (np.random.default_rng(seed).standard_normal(count) * 1e-3).astype(np.float32)
        params = delta_params(self.spec.codec, opened_round.base_revision)
        delta = encode(values, params)
        ref = ObjectRef(sha256_hex(delta), len(delta))
        key = keys.delta_key(self.spec.run, opened_round.round, shard, miner.hotkey, ref.sha256)
        base = self.state.revisions[opened_round.base_revision]
        manifest = Manifest(
            schema=1,
            run=self.spec.run,
            signer=miner.hotkey,
            key=key,
            round=opened_round.round,
            base_revision=base.revision,
            base_sha256=base.sha256,
            shard=shard,
            delta=ref,
            final=not drip,
            tokens=64,
            steps=2,
            samples=(SampleRange(opened_round.round, base.revision, 0, 4),),
            trace_root=sha256_hex(b"trace"),
            partitions=partition_hashes(delta, count, params, self.spec.reduce.partitions),
        )
        return manifest, delta

    def _lying(self, manifest: Manifest, lie: Mapping[str, object]) -> Manifest:
        lied = replace(manifest, **lie)  # type: ignore[arg-type]
        return replace(lied, base_sha256=self.state.revisions[lied.base_revision].sha256)

    def _merge(self, plan: RoundFrozen, revision: Revision, shard: ShardId) -> ShardState:
        memory = self.memory[shard]
        result = merge_round(
            self.spec,
            shard,
            plan,
            lambda member: read_delta(self.reader, self.spec.run, member),
            memory.weights,
            start_outer(self.spec, memory.outer, self.state.resets_outer),
        )
        self.memory[shard] = ShardMemory(shard, result.new_weights, result.new_outer_state)
        self.store.put(keys.update_key(self.spec.run, plan.round, shard, result.update.sha256), result.update_bytes)
        snapshot = self._snapshot(revision, shard, result) if revision % self.spec.round.snapshot_every == 0 else None
        return ShardState(shard, result.weights_sha256, result.outer_sha256, result.update, snapshot)

    def _snapshot(self, revision: Revision, shard: ShardId, result: MergeResult) -> ObjectRef:
        layers = plan_shards(self.spec.model, self.spec.num_shards)[shard]
        data = encode_snapshot(self.spec.model, layers, pack(result.new_weights, result.new_outer_state))
        ref = ObjectRef(sha256_hex(data), len(data))
        self.store.put(keys.snapshot_key(self.spec.run, revision, shard, ref.sha256), data)
        return ref


SCORES = {"assigned_drop": 0.1, "unseen_drop": 0.1, "quality": 1.0, "round_score": 1.0, "score": 1.0, "why": ""}
TIMES = {"training_ms": 1, "online_ms": 1, "tokens_per_s": 1.0}
SESSION = {"session": "", "session_tokens": 0, "session_training_ms": 0, "session_online_ms": 0}


def _reported(plan: RoundFrozen) -> tuple[MemberReport, ...]:
    """Members as a report has them, over all shards."""
    tokens: dict[Hotkey, int] = {}
    for member in plan.members:
        tokens[member.hotkey] = tokens.get(member.hotkey, 0) + member.tokens
    return tuple(
        MemberReport(
            hotkey=hotkey,
            uid=Uid(3),
            registered_block=1,
            decision="accepted",
            code="",
            tokens_trained=64,
            tokens_merged=merged,
            **TIMES,  # type: ignore[arg-type]  # fields by name
            **SESSION,  # type: ignore[arg-type]  # fields by name
            **SCORES,  # type: ignore[arg-type]  # fields by name
        )
        for hotkey, merged in sorted(tokens.items())
    )


def begin_world(spec: RunSpec, store: MemoryStore | None = None) -> World:
    """A run that Alice has begun to lead, in a store of its own unless one is given."""
    store = store or MemoryStore()
    state = create_run(store, spec, OWNER, ManualClock(), patience=no_patience())
    memory = {ShardId(s): rebuild(StoreReader(store), state, state.head, ShardId(s))[0] for s in range(spec.num_shards)}
    world = World(spec, store, state, memory)
    LeaseKeeper(store, spec, ALICE, ManualClock(), "p", patience=no_patience()).acquire(term=1)
    world.append(takeover("p"), term=1)
    return world


def eventful_world(num_shards: int = 1, momentum: float = 0.0) -> World:
    """Three revisions with all that happens on the way: an aborted plan, rejections, a stale entry, leftovers."""
    world = begin_world(small_spec(num_shards, momentum))
    world.run_round()
    world.append(opened(world.state))
    world.submit(MINERS[2], 0)  # never named by a plan: left over
    world.freeze(world.submit(MINERS[0], 0))
    world.append(aborted(world.state))
    stale = slot(world.state, takeover(), BOB, term=world.state.term, spec=world.spec)
    world.store.put(keys.log_key(world.spec.run, world.state.next_seq), stale)
    world.append(opened(world.state))
    members = [world.submit(miner, shard) for shard in world.memory for miner in MINERS[:2]]
    world.commit(world.freeze(*members, world.submit(MINERS[2], 0, accepted=False)))
    world.append(opened(world.state))
    members = [world.submit(miner, shard) for shard in world.memory for miner in MINERS[:2]]
    world.commit(world.freeze(*members, world.submit(MINERS[2], 0, accepted=False, put=False)))
    world.report()
    return world


def churned_world() -> World:
    """Three revisions: one that defers, one that takes the late one in its second attempt, one that adopts."""
    world = begin_world(small_spec())
    world.append(opened(world.state))
    waits = replace(world.submit(MINERS[2], 0, accepted=False, put=False), decision="deferred")
    late = replace(world.submit(MINERS[2], 0), weight=16.0, scale=16.0)
    world.commit(world.freeze(world.submit(MINERS[0], 0), world.submit(MINERS[1], 0), waits))
    world.append(opened(world.state))
    members = [world.submit(MINERS[0], 0), world.submit(MINERS[1], 0), late]
    world.freeze(*members)
    refused = {"decision": "rejected", "code": "guard_suspect", "tokens": 0, "weight": 0.0, "scale": 0.0}
    suspect = replace(members[0], **refused)  # type: ignore[arg-type]  # fields by name
    world.commit(world.freeze(suspect, *members[1:], attempt=1))
    world.append(opened(world.state))
    adopted = world.submit(MINERS[0], 0)
    world.append(aborted(world.state))
    world.pause_for_failures()
    world.append(Resumed(put_command(world.store, resume_command(world.state, OWNER, at_ms=1))))
    world.append(opened(world.state))
    world.commit(world.freeze(adopted, world.submit(MINERS[1], 0)))
    return world


def copy_store(store: MemoryStore) -> MemoryStore:
    """The same objects in a store of their own."""
    other = MemoryStore()
    for info in store.list(""):
        other.put(info.key, store.get(info.key, max_bytes=1 << 30).body)
    return other
