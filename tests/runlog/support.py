"""A small run to write histories for: keys known to everybody, entries that are valid one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import HealthCheck, settings

from common.identity import KeypairSigner, Signer
from common.records import ObjectRef
from common.runlog.casput import Patience
from common.runlog.entries import (
    NO_PREVIOUS,
    Draft,
    EntryData,
    Genesis,
    LeaderChanged,
    Paused,
    PlanMember,
    Resumed,
    RevisionCommitted,
    RolledBack,
    RoundAborted,
    RoundFrozen,
    RoundOpened,
    ShardState,
    encode_entry,
)
from common.runlog.replay import apply, begin
from common.runlog.rules import ORDERED, plan_damping, plan_tokens
from common.runlog.state import RunState
from common.spec import RunSpec, spec_hash
from common.store.retry import RetryPolicy
from common.units import Revision, Sha256, ShardId, Uid, sha256_hex
from tests.support.specs import OWNER, tiny_spec

ALICE = KeypairSigner.from_uri("//Alice")
BOB = KeypairSigner.from_uri("//Bob")
MINERS = tuple(KeypairSigner.from_uri(f"//Miner{i}") for i in range(3))
STRANGER = KeypairSigner.from_uri("//Stranger")


def small_spec(num_shards: int = 1, momentum: float = 0.0) -> RunSpec:
    """A run of a few thousand parameters, led by Alice or Bob."""
    base = tiny_spec()
    return replace(
        base,
        run="tiny",
        owner=OWNER.hotkey,
        validators=(ALICE.hotkey, BOB.hotkey),
        num_shards=num_shards,
        model=replace(base.model, tied_head=False),
        outer=replace(base.outer, momentum=momentum),
    )


SPEC = small_spec()


def steady(max_examples: int) -> settings:
    """Settings of a property test that a loaded machine can't fail: no deadline, no complaint about slow draws."""
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def no_patience(attempts: int = 4) -> Patience:
    """Retries without waiting."""
    return Patience(RetryPolicy(attempts=attempts), sleep=lambda _: None, uniform=lambda: 0.5)


def counting_nonces() -> Iterator[str]:
    """Nonces that differ, in a fixed order."""
    number = 0
    while True:
        number += 1
        yield f"n{number}"


def ref(name: str) -> ObjectRef:
    """A reference to bytes that nobody stored."""
    return ObjectRef(sha256_hex(name.encode()), len(name))


def shards(spec: RunSpec, name: str, first: bool = False) -> tuple[ShardState, ...]:
    """A revision's shards with made-up hashes."""
    return tuple(
        ShardState(
            ShardId(i),
            sha256_hex(f"{name}/w{i}".encode()),
            sha256_hex(f"{name}/o{i}".encode()),
            None if first else ref(f"{name}/u{i}"),
            ref(f"{name}/s{i}") if first else None,
        )
        for i in range(spec.num_shards)
    )


def genesis(spec: RunSpec = SPEC) -> Genesis:
    return Genesis(spec_hash(spec), shards(spec, "r0", first=True))


def genesis_slot(spec: RunSpec = SPEC) -> bytes:
    return slot(None, genesis(spec), OWNER, term=0, spec=spec)


def started(spec: RunSpec = SPEC) -> RunState:
    """A state with nothing but the genesis."""
    return begin(spec, genesis_slot(spec))


def slot(
    state: RunState | None,
    data: EntryData,
    signer: Signer,
    term: int | None = None,
    spec: RunSpec = SPEC,
    nonce: str = "n",
    prev: Sha256 | None = None,
    seq: int | None = None,
) -> bytes:
    """The bytes of an entry that follows ``state``, or that lies about its place."""
    place = (state.next_seq, state.head_sha256, state.term) if state else (0, NO_PREVIOUS, 0)
    draft = Draft(
        run=spec.run,
        seq=place[0] if seq is None else seq,
        prev=prev or place[1],
        term=place[2] if term is None else term,
        nonce=nonce,
        at_ms=1_700_000_000_000,
        reason="because",
        data=data,
    )
    return encode_entry(draft, signer)


def member(
    state: RunState, signer: Signer, shard: int = 0, tokens: int = 100, code: str = "", **changes: object
) -> PlanMember:
    """A member of the open round's plan; with ``code`` a rejected one; ``changes`` are other fields."""
    accepted = not code
    assert state.open_round is not None
    plain = PlanMember(
        shard=ShardId(shard),
        hotkey=signer.hotkey,
        round=state.open_round.round,
        base_revision=state.open_round.base_revision,
        uid=Uid(1),
        registered_block=1,
        delta=ref(f"delta of {signer.hotkey}"),
        manifest_sha256=sha256_hex(b"manifest"),
        tokens_claimed=tokens,
        tokens=tokens if accepted else 0,
        decision="accepted" if accepted else "rejected",
        code=code,
        reason="fine" if accepted else "not fine",
        weight=1.0 if accepted else 0.0,
        scale=1.0 if accepted else 0.0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields by name


def opened(state: RunState) -> RoundOpened:
    return RoundOpened(state.next_round, state.head)


def frozen(state: RunState, *members: PlanMember, attempt: int = 0, damping: float | None = None) -> RoundFrozen:
    """The plan of the open round; by default every miner is accepted on every shard."""
    assert state.open_round is not None
    spec = state.spec
    chosen = members or tuple(member(state, m, s) for s in range(spec.num_shards) for m in MINERS)
    ordered = tuple(sorted(chosen, key=lambda m: (m.shard, m.hotkey, m.round)))
    plan = RoundFrozen(state.open_round.round, state.open_round.base_revision, attempt, 1.0, ordered)
    return replace(plan, damping=plan_damping(spec, plan) if damping is None else damping)


def committed(state: RunState, tokens: int | None = None) -> RevisionCommitted:
    assert state.open_round is not None
    plan = state.open_round.plan
    merged = tokens if tokens is not None else (plan_tokens(state.spec, plan) if plan else 0)
    revision = state.next_revision
    return RevisionCommitted(
        state.open_round.round,
        revision,
        state.open_round.base_revision,
        merged,
        shards(state.spec, f"r{revision}"),
    )


def aborted(state: RunState, code: str = "no_quorum") -> RoundAborted:
    assert state.open_round is not None
    return RoundAborted(state.open_round.round, state.open_round.base_revision, code, ("why",))


def ordered(state: RunState, what: str) -> Sha256:
    """Names a command that nobody stored, another one for each slot."""
    return sha256_hex(f"{what} {state.next_seq}".encode())


def paused(state: RunState) -> Paused:
    return Paused(ORDERED, ("the owner orders it",), ordered(state, "pause"))


def resumed(state: RunState, cold: bool = False) -> Resumed:
    return Resumed(ordered(state, "resume"), cold)


def rolled_back(state: RunState, revision: int = 0) -> RolledBack:
    return RolledBack(Revision(revision), ordered(state, "rollback"))


def takeover(name: str = "process") -> LeaderChanged:
    return LeaderChanged(name)


def after(state: RunState, *datas: Callable[[RunState], EntryData], signer: Signer = ALICE) -> RunState:
    """The state after entries that must all be valid: takeovers begin the next term."""
    for make in datas:
        data = make(state)
        term = state.term + 1 if data == takeover() else state.term
        step = apply(state, slot(state, data, signer, term=term, spec=state.spec))
        assert step.void is None, step.void
        state = step.state
    return state


def led(spec: RunSpec = SPEC) -> RunState:
    """Alice leads term 1; no round is open."""
    return after(started(spec), lambda _: takeover())
