"""``brigade run verify``: proves a run from its bucket alone, and names the first thing that is wrong.

In order: the spec by its hash; the log, slot by slot (damage is an error here, only stale entries are passed over);
the merges again, from the snapshot of revision 0 to the end of every branch, and with them every snapshot on the way;
the submissions that the plans name; the words of miners by whose means a revision was merged; the owner's commands
behind what was done by order; then every object that is left under the run, by the hash in its name or by its
signature. The listing is taken first, so that a run that goes on meanwhile is verified as far as its log was then read.

Where a ``gc`` entry has raised the floor, the merges begin at the snapshot of that revision, and what the entry named
may be gone; an object that is gone and that no entry named is wrong.

What this can't prove: that the log has no more slots than the bucket shows. Whatever follows from a missing slot gives
the cut away (``told.py``), but where all of it was left out too, what remains is a whole run. Nor that the owner and a
leader have not written another history together. Heads that validators committed on chain prove both, up to their slot
(``headproof.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from common import keys
from common.convictions import Conviction
from common.errors import Rejected
from common.model.layout import run_layouts
from common.records import MAX_MANIFEST_BYTES
from common.runlog import checks
from common.runlog.commands import MAX_COMMAND_BYTES
from common.runlog.entries import PlanMember
from common.runlog.headproof import Heads, ProvedTail, prove_tail
from common.runlog.leftovers import verify_rest
from common.runlog.materialise import load_snapshot
from common.runlog.proof import Say, Work, may_be_gone, naming, prove_manifest
from common.runlog.proving import ProvingReader, VerifyError
from common.runlog.reader import spec_hash_of_log, walk
from common.runlog.reduced import WrongMean, read_words, taken_means
from common.runlog.remerge import ShardMemory, remerge
from common.runlog.state import RevisionNode, RunState
from common.runlog.told import slot_missing
from common.spec import MAX_SPEC_BYTES, RunSpec, decode_spec
from common.store.place import BucketPlace
from common.store.port import ObjectStore
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId


@dataclass(frozen=True)
class VerifyReport:
    """What was checked, and found right."""

    state: RunState
    spec_sha256: Sha256
    entries: int
    """Slots of the log that were read, stale ones included."""
    voids: Mapping[str, int]
    """Stale entries by code."""
    objects: Mapping[str, int]
    """Objects found right, by kind."""
    merges: int
    """Shard merges that were computed again."""
    absent: tuple[str, ...]
    """Deltas that a plan rejected or deferred and that never came."""
    replaced: int
    """Submissions that a plan passed over for another one of the same miner: drips, mostly."""
    unreferenced: tuple[str, ...]
    """Other objects that nothing in the log refers to; their hashes or signatures are right."""
    suspicious: Mapping[str, str]
    """Those of them that no honest run leaves behind, or only while it commits: key and why."""
    refused: tuple[str, ...]
    """Deltas in parts that no plan accepted and whose bytes are not those of their name: uploads that were refused."""
    unreported: tuple[RoundId, ...]
    """Rounds that ended and of which no validator's report is there."""
    lease: bool
    """Whether a lease is there."""
    deleted: int = 0
    """Objects that the log refers to and that retention has deleted: a ``gc`` entry names them."""
    tail: ProvedTail | None = None
    """How far heads on chain prove the log; None when the chain was not asked."""
    convictions: tuple[Conviction, ...] = ()
    """What validators say of leaders and miners; whether it is true, ``recheck`` tells."""
    unheard: Mapping[Hotkey, int] = field(default_factory=dict)
    """How many more each signer says, which are not among them."""
    wrong_means: tuple[tuple[Revision, WrongMean], ...] = ()
    """Lies of miners that are part of a revision: all owners of a partition told the same."""


def verify_run(
    store: ObjectStore,
    run: str,
    expected_spec_sha256: Sha256 | None = None,
    say: Say = lambda _: None,
    heads: Heads | None = None,
    place: BucketPlace | None = None,
) -> VerifyReport:
    """Prove everything under ``runs/<run>/``. ``say`` is told of each part that was found right.

    ``expected_spec_sha256`` is what the owner committed on chain; without it the spec is proved by the genesis alone.
    ``place`` is the bucket: when the log says that the run has left it, what lies behind that counts for nothing, and
    heads committed since are of the log in the other bucket.

    ``heads`` are those that validators committed on chain, read before this call; without them nothing proves that
    the log has no more slots than the bucket shows. Raises ``VerifyError``, and ``Retryable`` when the store stays
    away.
    """
    work = Work(ProvingReader(store), run, list(store.list(keys.run_prefix(run))), say, place)
    spec_sha256 = expected_spec_sha256 or _spec_hash_of_genesis(work)
    spec = _verify_spec(work, spec_sha256)
    work.counts = tuple(layout.total for layout in run_layouts(spec.model, spec.num_shards))
    state = _verify_log(work, spec)
    if heads is not None and state.left(place):
        heads = {hotkey: head for hotkey, head in heads.items() if head.seq < state.next_seq}
    tail = None if heads is None else prove_tail(run, work.hashes, heads)
    _verify_merges(work, state)
    _verify_plans(work, state)
    _verify_reductions(work, state)
    _verify_commands(work, state)
    verify_rest(work, state)
    kinds = (parts.kind for key in work.reader.proved if (parts := keys.parse_key(run, key)))
    return VerifyReport(
        state=state,
        spec_sha256=spec_sha256,
        entries=state.next_seq,
        voids=Counter(void.code for void in state.voids),
        objects=Counter(kinds),
        merges=work.merges,
        absent=tuple(work.absent),
        replaced=work.replaced,
        unreferenced=tuple(work.unreferenced),
        suspicious=work.suspicious,
        refused=tuple(work.refused),
        unreported=tuple(sorted(work.told.ended.keys() - work.reported)),
        lease=keys.lease_key(run) in work.reader.proved,
        deleted=len(work.deleted),
        tail=tail,
        convictions=work.heard.kept,
        unheard=work.heard.unheard,
        wrong_means=tuple(work.wrong_means),
    )


def _spec_hash_of_genesis(work: Work) -> Sha256:
    with naming(keys.log_key(work.run, 0)):
        return spec_hash_of_log(work.reader, work.run)


def _verify_spec(work: Work, sha256: Sha256) -> RunSpec:
    key = keys.spec_key(work.run)
    with naming(key):
        spec = decode_spec(work.reader.fetch(key, max_bytes=MAX_SPEC_BYTES, sha256=sha256))
        if spec.run != work.run:
            raise Rejected("wrong_run", f"it is the spec of run {spec.run}")
    work.say(f"spec {sha256[:16]}…: the hash is right")
    return spec


def _verify_log(work: Work, spec: RunSpec) -> RunState:
    """Replay the log strictly, and refuse slots that lie behind a gap."""
    state: RunState | None = None
    steps = walk(spec, lambda seq: work.reader.find_slot(work.run, seq), None, lambda: work.place)
    while True:
        key = keys.log_key(work.run, state.next_seq if state else 0)
        with naming(key):
            step = next(steps, None)
            if step is None:
                break
            checks.check_step(step)
        work.told.note(step, state)
        state = step.state
        work.reader.proved.add(key)
        work.hashes.append(state.head_sha256)
    assert state is not None, "an empty log is refused by walk"
    behind = [info for info in work.listing if _seq(work, info.key) >= state.next_seq]
    if state.left(work.place):
        work.listing = [info for info in work.listing if info not in behind]
        work.say(f"the run has left this bucket: {len(behind)} slots behind that count for nothing")
        behind = []
    for info in behind:
        raise slot_missing(state, info.key, "no slot is passed over")
    work.say(f"log: {state.next_seq} entries signed and chained, {len(state.voids)} of them stale; term {state.term}")
    return state


def _seq(work: Work, key: str) -> int:
    """The slot that an object is; -1 for another."""
    parts = keys.parse_key(work.run, key)
    return -1 if parts is None or parts.seq is None else parts.seq


def _verify_merges(work: Work, state: RunState) -> None:
    """Merge every round again from the deltas, shard by shard, and prove all snapshots on the way: of every branch."""
    _note_deleted(work, state)
    nodes = sorted(state.revisions.values(), key=lambda node: node.revision)
    nodes = [node for node in nodes if node.revision >= state.floor or node.revision == 0]
    last_child = {node.parent: node.revision for node in nodes}
    for shard in range(state.spec.num_shards):
        memories: dict[Revision, ShardMemory] = {}
        for node in nodes:
            base = None if node.parent is None or node.revision == state.floor else memories[node.parent]
            memories[node.revision] = _verify_node(work, state, node, ShardId(shard), base)
            memories = {kept: memory for kept, memory in memories.items() if last_child.get(kept, -1) > node.revision}
    head = state.head_node
    if state.floor:
        work.say(
            f"merges begin at revision {state.floor}, the oldest kept: "
            f"{len(work.deleted)} objects before it were deleted by retention"
        )
    work.say(f"merges: {work.merges} computed again, all bits equal; head is revision {head.revision}, {head.sha256}")


def _verify_node(
    work: Work, state: RunState, node: RevisionNode, shard: ShardId, memory: ShardMemory | None
) -> ShardMemory:
    with naming(keys.log_key(work.run, node.seq)):
        if memory is not None:
            compared = remerge(work.reader, state, node, memory)
            memory = compared.memory
            work.wrong_means += [(node.revision, found) for found in compared.wrong_means]
            work.merges += 1
    made = node.shards[shard]
    if memory is not None and made.update is not None and node.round is not None:
        update = keys.update_key(work.run, node.round, shard, made.update.sha256)
        work.reader.fetch(update, max_bytes=made.update.size_bytes, sha256=made.update.sha256)
    if made.snapshot is None:
        assert memory is not None, "replay refuses a genesis without snapshots"
        return memory
    with naming(keys.snapshot_key(work.run, node.revision, shard, made.snapshot.sha256)):
        found = load_snapshot(work.reader, state.spec, node, shard)
    assert found is not None
    return memory or ShardMemory(shard, *found)


def _note_deleted(work: Work, state: RunState) -> None:
    """What the log refers to and has named for deletion, and is not there any more."""
    listed = {info.key for info in work.listing}
    named: set[str] = set()
    for node in state.revisions.values():
        for shard in node.shards:
            if shard.snapshot is not None:
                named.add(keys.snapshot_key(work.run, node.revision, shard.shard, shard.snapshot.sha256))
            if shard.update is not None and node.round is not None:
                named.add(keys.update_key(work.run, node.round, shard.shard, shard.update.sha256))
    members = (m for plan in work.told.plans.values() for m in plan.members if m.decision == "accepted")
    named |= {keys.delta_key(work.run, m.round, m.shard, m.hotkey, m.delta.sha256) for m in members}
    work.deleted = {key for key in named - listed if may_be_gone(work, state, key)}


def _verify_plans(work: Work, state: RunState) -> None:
    """Every submission that a plan names: the accepted must be there, of the others what has come."""
    for plan in work.told.plans.values():
        for member in plan.members:
            _verify_member(work, state, member)
    members = sum(len(plan.members) for plan in work.told.plans.values())
    work.say(f"plans: {len(work.told.plans)} with {members} submissions, each with its manifest and receipt")


def _verify_member(work: Work, state: RunState, member: PlanMember) -> None:
    place = (work.run, member.round, member.shard, member.hotkey, member.delta.sha256)
    delta, key = keys.delta_key(*place), keys.manifest_key(*place)
    body = work.reader.find(key, MAX_MANIFEST_BYTES)
    if body is None and member.decision != "accepted":
        work.absent.append(delta)
        return
    if body is None:
        raise VerifyError(key, "it is missing, but a plan accepted its delta")
    with naming(key):
        stored = prove_manifest(work, state, key, body)
        checks.check_member(state, member, stored)
    if member.decision == "accepted" and not (may_be_gone(work, state, delta) and not work.reader.exists(delta)):
        size = member.delta.size_bytes
        data = work.reader.fetch(delta, max_bytes=size, sha256=member.delta.sha256, size_bytes=size)
        with naming(key):
            checks.check_partitions(state, stored.manifest, data, work.counts[member.shard])


def _verify_reductions(work: Work, state: RunState) -> None:
    """Every signed word by which a commit took means from miners is there and says so."""
    for node in state.revisions.values():
        if node.reduced is None or node.round is None or node.plan_sha256 is None:
            continue
        named = [keys.reduction_key(work.run, node.round, word.hotkey, word.sha256) for word in node.reduced.words]
        if any(may_be_gone(work, state, key) and not work.reader.exists(key) for key in named):
            continue
        with naming(keys.log_key(work.run, node.seq)):
            words = read_words(work.reader, work.run, node.round, node.plan_sha256, node.reduced)
            taken_means(state.spec, node.reduced, words)


def _verify_commands(work: Work, state: RunState) -> None:
    """Whatever the log calls the owner's order was ordered by the owner, when and as the log says."""
    for obeyed in work.told.obeyed:
        key = keys.command_key(work.run, obeyed.command_sha256)
        body = work.reader.fetch(key, max_bytes=MAX_COMMAND_BYTES, sha256=obeyed.command_sha256)
        with naming(key):
            checks.check_command(obeyed, body)
