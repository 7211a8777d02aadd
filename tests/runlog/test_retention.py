"""Whatever a run has lived through, every revision from the floor on is whole, and what is deleted was named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import keys
from common.errors import Rejected
from common.records import decode_submission
from common.runlog.commands import rollback_command
from common.runlog.entries import EntryData, Gc, RolledBack, RoundFrozen
from common.runlog.leftout import judge
from common.runlog.materialise import materialise
from common.runlog.proving import VerifyError
from common.runlog.reader import LogReader
from common.runlog.remerge import rebuild
from common.runlog.replay import apply
from common.runlog.retention import due, held_back, is_named, next_gc
from common.runlog.spent import Planned, is_spent, planned
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.spec import RetentionSpec
from common.units import Revision, RoundId, ShardId
from miner.revisions import bring_to_head
from tests.runlog.support import ALICE, MINERS, aborted, opened, ordered, slot, small_spec, steady
from tests.runlog.test_catchup import holder
from tests.runlog.world import World, begin_world
from validator.run_gc import outline, read

ACTIONS = st.lists(
    st.sampled_from(["round", "round", "late", "drips", "left out", "aborted", "gc", "delete"]) | st.integers(0, 5),
    min_size=6,
    max_size=16,
)


def a_world(revisions: int = 2, snapshots: int = 2) -> World:
    spec = replace(small_spec(), retention=RetentionSpec(snapshots, revisions, grace_s=1.0))
    return begin_world(spec)


def collect(world: World) -> None:
    found = next_gc(world.state)
    if found is not None:
        world.append(found)


def delete(world: World) -> list[str]:
    """All that the log has named, as slow leaders leave it until the last moment."""
    plans = read(LogReader(world.reader, world.spec))[1]
    gone = []
    for info in list(world.store.list(keys.run_prefix(world.spec.run))):
        parts = keys.parse_key(world.spec.run, info.key)
        if parts is not None and (is_named(world.state, parts) or is_spent(world.state, plans, parts)):
            world.store.delete(info.key)
            gone.append(info.key)
    return gone


def late_round(world: World) -> None:
    """A round that accepts what the one before deferred."""
    state = world.state
    world.append(opened(state))
    waits = replace(world.submit(MINERS[2], 0, accepted=False), decision="deferred")
    world.commit(world.freeze(world.submit(MINERS[0], 0), waits))
    world.append(opened(world.state))
    late = replace(waits, decision="accepted", code="", tokens=64, weight=16.0, scale=16.0)
    world.commit(world.freeze(world.submit(MINERS[0], 0), late))


def drips_round(world: World) -> None:
    """A round in which every miner sends twice, and the plan names what came last."""
    world.append(opened(world.state))
    for miner in MINERS:
        world.submit(miner, 0, drip=1)
    world.commit(world.freeze(*[world.submit(miner, 0) for miner in MINERS]))


def leave_out(world: World) -> None:
    """A round whose plan names nothing of a miner that its leader has given two receipts."""
    world.append(opened(world.state))
    for drip in (1, 0):
        world.submit(MINERS[2], 0, drip=drip)
    world.commit(world.freeze(*[world.submit(miner, 0) for miner in MINERS[:2]]))


def abort(world: World) -> None:
    """A round without a plan, of whose submissions the next one takes up one."""
    world.append(opened(world.state))
    for drip in (1, 0):
        adopted, *_ = [world.submit(miner, 0, drip=drip) for miner in MINERS]
    world.append(aborted(world.state))
    world.append(opened(world.state))
    world.commit(world.freeze(adopted, world.submit(MINERS[1], 0)))


HISTORY = {"round": World.run_round, "late": late_round, "drips": drips_round, "left out": leave_out, "aborted": abort}


def grown(rounds: int) -> World:
    world = a_world()
    for _ in range(rounds):
        world.run_round()
    return world


@given(ACTIONS)
@steady(10)
def test_every_revision_from_the_floor_on_stays_whole(actions: list[str | int]) -> None:
    world = a_world()
    holders = [holder(world, 0)]
    for action in actions:
        if isinstance(action, str) and action in HISTORY:
            HISTORY[action](world)
            continue
        if action == "gc":
            collect(world)
        elif action == "delete":
            check_evidence(world)
        else:
            kept = [revision for revision in world.state.revisions if revision >= world.state.floor]
            world.roll_back(kept[-1 - int(action) % len(kept)])
        check_whole(world)
        for held in holders[-3:]:
            assert bring_to_head(world.reader, world.state, held).sha256 == world.state.head_node.sha256
        holders.append(holder(world, world.state.head))
    verify_run(world.store, world.spec.run)


def check_evidence(world: World) -> None:
    """What is deleted leaves every plan its manifests, and every receipt that convicts its leader."""
    entries = [step.entry for step in LogReader(world.reader, world.spec).steps() if step.void is None and step.entry]
    plans = [(entry, entry.data) for entry in entries if isinstance(entry.data, RoundFrozen)]
    run = world.spec.run
    named = {
        keys.manifest_key(run, m.round, m.shard, m.hotkey, m.delta.sha256) for _, plan in plans for m in plan.members
    }
    before = {key: body(world, key) for key in manifests(world)}
    for key in before.keys() & set(delete(world)):
        assert key not in named
        stored = decode_submission(before[key], run)
        assert not [entry for entry, _ in plans if judge(stored, entry).guilty]


def body(world: World, key: str) -> bytes:
    return world.store.get(key, max_bytes=1 << 20).body


def manifests(world: World) -> list[str]:
    listed = [(info.key, keys.parse_key(world.spec.run, info.key)) for info in world.store.list("")]
    return [key for key, parts in listed if parts is not None and parts.kind == "manifest"]


def check_whole(world: World) -> None:
    """Weights and outer state; both prove the hashes that the log committed."""
    state = world.state
    for revision in state.revisions:
        if revision >= state.floor:
            materialise(world.reader, state, revision)
            rebuild(world.reader, state, revision, ShardId(0))
    assert state.floor in {node.revision for node in state.lineage(state.head)}


def refusal(state: RunState, data: EntryData) -> str:
    step = apply(state, slot(state, data, ALICE, spec=state.spec))
    return "" if step.void is None else step.void.message


def test_the_log_refuses_to_name_what_is_needed() -> None:
    world = grown(8)
    good = next_gc(world.state)
    assert good == Gc(Revision(6), RoundId(5), RoundId(6))
    assert refusal(world.state, good) == ""
    for bad in (
        Gc(Revision(8), RoundId(7), RoundId(8)),
        Gc(Revision(5), RoundId(4), RoundId(5)),
        replace(good, deltas_before=RoundId(6)),
        replace(good, updates_before=RoundId(7)),
    ):
        assert refusal(world.state, bad)
    world.append(good)
    assert refusal(world.state, good), "the floor only rises"
    assert next_gc(world.state) is None


def test_what_followers_need_holds_the_floor_back_but_not_for_ever() -> None:
    world = grown(12)
    assert next_gc(world.state, held_back(world.state, [Revision(7)])) == Gc(Revision(6), RoundId(5), RoundId(6))
    assert next_gc(world.state, held_back(world.state, [Revision(0)])) == next_gc(world.state)


def test_nothing_goes_back_behind_the_floor() -> None:
    world = grown(8)
    collect(world)
    told = "revision 5 was deleted by retention; the oldest revision kept is 6"
    assert refusal(world.state, RolledBack(Revision(5), ordered(world.state, "rollback"))) == told
    with pytest.raises(ValueError, match=told):
        rollback_command(world.state, ALICE, 1, Revision(5))
    with pytest.raises(Rejected, match=told):
        materialise(world.reader, world.state, Revision(5))


def test_a_run_is_proved_from_the_floor_on_when_the_rest_is_gone() -> None:
    world = grown(8)
    whole = verify_run(world.store, world.spec.run)
    collect(world)
    said: list[str] = []
    half = verify_run(world.store, world.spec.run, say=said.append)
    assert (half.deleted, half.merges) == (0, 2)
    gone = delete(world)
    assert gone
    report = verify_run(world.store, world.spec.run, say=said.append)
    assert report.deleted == len(gone)
    assert report.state.head_node == whole.state.head_node
    assert f"merges begin at revision 6, the oldest kept: {len(gone)} objects before it" in " ".join(said)


def test_what_goes_while_a_run_is_verified_is_right_and_the_plans_are_gone_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, gone, made = grown(8), [], []
    collect(world)

    def say(line: str) -> None:
        if line.startswith("plans: "):
            gone.extend(delete(world))

    def counted(plans: Iterable[RoundFrozen]) -> Planned:
        made.append(plans)
        return planned(plans)

    monkeypatch.setattr("common.runlog.proof.planned", counted)
    verify_run(world.store, world.spec.run, say=say)
    assert len(gone) > 5
    assert len(made) == 1


def test_the_first_snapshot_stays_and_is_proved() -> None:
    """A validator that comes later takes the loss that the run began with from it."""
    world = grown(8)
    collect(world)
    delete(world)
    assert rebuild(world.reader, world.state, Revision(0), ShardId(0))[1] == ()
    made = world.state.revisions[Revision(0)].shards[0].snapshot
    assert made is not None
    key = keys.snapshot_key(world.spec.run, Revision(0), ShardId(0), made.sha256)
    world.store.delete(key)
    with pytest.raises(VerifyError) as caught:
        verify_run(world.store, world.spec.run)
    assert caught.value.key == key


def reduced_round(world: World, committed: bool = True) -> list[str]:
    """A round whose partitions two miners have reduced; what they left in the bucket."""
    world.append(opened(world.state))
    plan = world.freeze(*[world.submit(miner, 0) for miner in MINERS])
    left = [key for miner in MINERS[:2] for key in world.reduce(miner)]
    if committed:
        world.commit(plan)
    else:
        world.append(aborted(world.state, "finish_deadline"))
    return left


def test_what_owners_signed_goes_with_the_updates_of_its_round_and_not_before() -> None:
    world = a_world()
    left = [reduced_round(world) for _ in range(8)]
    assert not verify_run(world.store, world.spec.run).unreferenced
    collect(world)
    assert world.state.floor == 6
    verify_run(world.store, world.spec.run)
    gone = set(delete(world))
    for round_id, found in enumerate(left):
        assert set(found) <= gone if round_id < 6 else not gone & set(found)
    kinds = {parts.kind for key in gone if (parts := keys.parse_key(world.spec.run, key)) is not None}
    assert kinds == {"delta", "update", "mean", "reduction", "snapshot"}
    assert not verify_run(world.store, world.spec.run).unreferenced


def test_what_owners_signed_in_an_aborted_round_is_left_over_and_goes_as_its_deltas_do() -> None:
    world = a_world()
    left = reduced_round(world, committed=False)
    report = verify_run(world.store, world.spec.run)
    assert sorted(report.unreferenced) == sorted(left)
    assert not report.suspicious
    for _ in range(8):
        world.run_round()
    collect(world)
    assert set(left) <= set(delete(world))
    assert not verify_run(world.store, world.spec.run).unreferenced


def test_manifests_of_replaced_drips_go_with_their_deltas() -> None:
    world = a_world()
    for _ in range(8):
        drips_round(world)
    plain = set(manifests(grown(8)))
    assert len(manifests(world)) == 2 * len(plain)
    collect(world)
    assert world.state.collections[-1].gc.deltas_before == 5
    verify_run(world.store, world.spec.run)
    delete(world)
    drips = [key for key in manifests(world) if key not in plain]
    assert plain <= set(manifests(world))
    assert {parts.round_id for key in drips if (parts := keys.parse_key(world.spec.run, key))} == {5, 6, 7}
    assert not verify_run(world.store, world.spec.run).unreferenced


def test_what_a_plan_left_out_stays_and_convicts_its_leader() -> None:
    world = a_world()
    leave_out(world)
    left = [key for key in manifests(world) if MINERS[2].hotkey in key]
    for _ in range(8):
        world.run_round()
    collect(world)
    delete(world)
    entries = [step.entry for step in LogReader(world.reader, world.spec).steps()]
    first = next(entry for entry in entries if entry is not None and isinstance(entry.data, RoundFrozen))
    assert len(left) == 2
    for key in left:
        stored = decode_submission(body(world, key), world.spec.run)
        assert judge(stored, first).guilty


def test_of_a_round_without_a_plan_only_what_a_later_one_took_up_stays() -> None:
    world = a_world()
    abort(world)
    for _ in range(8):
        world.run_round()
    collect(world)
    delete(world)
    left = [key for key in manifests(world) if key.startswith(keys.round_prefix(world.spec.run, RoundId(0)))]
    assert len(left) == 1
    verify_run(world.store, world.spec.run)


def test_a_round_that_is_being_reduced_leaves_nothing_over() -> None:
    world = a_world()
    world.append(opened(world.state))
    world.freeze(*[world.submit(miner, 0) for miner in MINERS])
    world.reduce(MINERS[0])
    assert not verify_run(world.store, world.spec.run).unreferenced


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["mean", "reduction", "manifest"])
def test_what_retention_deletes_while_it_is_verified_is_not_missed(kind: str, named: bool) -> None:
    world = a_world()
    drips_round(world)
    left = {
        "manifest": [key for key in manifests(world) if not decode_submission(body(world, key), "tiny").manifest.final]
    }
    made = [key for _ in range(8) for key in reduced_round(world)]
    left |= {
        "mean": [key for key in made if "/means/" in key],
        "reduction": [key for key in made if "means" not in key],
    }
    if named:
        collect(world)
    key = left[kind][0]
    world.store.before = lambda operation, at: world.store.delete(key) if (operation, at) == ("get", key) else None
    if named:
        verify_run(world.store, world.spec.run)
        assert world.store.head(key) is None
        return
    with pytest.raises(VerifyError, match="no gc entry names it") as caught:
        verify_run(world.store, world.spec.run)
    assert caught.value.key == key


@pytest.mark.parametrize("kind", ["delta", "update", "snapshot", "manifest"])
def test_what_is_gone_and_was_not_named_is_wrong(kind: str) -> None:
    world = grown(8)
    collect(world)
    delete(world)
    left = [info.key for info in world.store.list(keys.run_prefix(world.spec.run))]
    parts = [(key, keys.parse_key(world.spec.run, key)) for key in left]
    key = next(key for key, found in parts if found is not None and found.kind == kind)
    world.store.delete(key)
    with pytest.raises(VerifyError) as caught:
        verify_run(world.store, world.spec.run)
    assert caught.value.key == key


def test_what_the_newest_entry_named_is_where_it_is_looked_for() -> None:
    world = grown(8)
    collect(world)
    first = due(world.state)
    assert first is not None
    assert (first.rounds, first.revisions) == (range(6), range(6))
    delete(world)
    for _ in range(4):
        world.run_round()
    collect(world)
    second = due(world.state)
    assert second is not None
    for key in delete(world):
        parts = keys.parse_key(world.spec.run, key)
        assert parts is not None
        assert parts.round_id in second.rounds if parts.revision is None else parts.revision in second.revisions


def test_the_operator_sees_what_is_kept_and_what_goes() -> None:
    world = a_world()
    prefix = keys.run_prefix(world.spec.run)
    for _ in range(8):
        drips_round(world)
    plans = read(LogReader(world.reader, world.spec))[1]
    before = outline(world.state, world.store.list(prefix), plans)
    assert "revisions 0 to 8 are whole" in before[0]
    assert before[-1].startswith("next: revisions before 6")
    collect(world)
    named = outline(world.state, world.store.list(prefix), plans)
    goes = before[-1].rsplit(": ", 1)[1]
    assert named[2].endswith(f"named them: {goes}"), "what was to be next is due now"
    delete(world)
    assert outline(world.state, world.store.list(prefix), plans)[2].endswith("0 objects, 0 B")
