"""All owners of a partition that nobody draws tell the same lie: it is committed, and their signatures convict them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common import keys
from common.codec.params import F32
from common.convictions import Conviction, MergedWrongly, decode_conviction
from common.data.dataset import Dataset
from common.model.layout import weights_hash
from common.runlog.entries import RoundFrozen
from common.runlog.proving import VerifyError
from common.runlog.reader import LogReader
from common.runlog.recompute import MergeResult
from common.runlog.remerge import rebuild
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.spec import ReduceSpec
from common.store.port import ObjectReader
from common.store.reader import StoreReader
from common.units import Revision, RoundId, Sha256, ShardId
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import (
    MINERS,
    UNDRAWN,
    Twist,
    bytes_of_a_leader_alone,
    liars,
    lie,
    play_round,
    reduction_events,
)
from tests.validator.forging import forged_round
from tests.validator.test_following import WATCHER, caught_up, follower, may_lead
from tests.validator.world import World
from validator import merging
from validator.audits.recheck import recheck
from validator.heads import Memories
from validator.process import Validator, assemble
from validator.run_cli import summary
from validator.scoring.reports import read_reports

Vectors = Mapping[ShardId, F32]
Results = tuple[MergeResult, ...]
ALL_LIE: dict[int, Twist] = dict.fromkeys(range(MINERS), lie)


def harmful(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return values + 1


def lied(dataset: Dataset) -> World:
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey), reduce=UNDRAWN)
    asyncio.run(play_round(world, ALL_LIE))
    return world


async def watched(world: World, folder: Path) -> tuple[Validator, list[Conviction]]:
    """A follower that has looked at revision 1, and what it has against whom."""
    watching = follower(world, folder)
    await caught_up(watching, 1)
    await watching.scorer.drain()
    await watching.convictions.flush()
    names = [name for name in watching.service.report_index().names if name.endswith(".conviction.json")]
    return watching, [decode_conviction(watching.service.report(name), world.spec.run) for name in names]


def test_followers_convict_the_owners_by_their_own_words_and_not_the_leader(dataset: Dataset, tmp_path: Path) -> None:
    world = lied(dataset)
    assert liars(world) == set()  # the leader had no reason to compute what its owners agreed on
    reader, log = StoreReader(world.store), LogReader(StoreReader(world.store), world.spec)

    async def go() -> None:
        watching, found = await watched(world, tmp_path)
        assert {one.kind for one in found} == {"reduced_wrongly"}
        assert {one.accused for one in found} == {miner.signer.hotkey for miner in world.miners}
        assert {one.leader for one in found} == {VALIDATOR.hotkey}
        assert all(recheck(reader, log, one).proved for one in found)
        assert VALIDATOR.hotkey not in watching.driver._following.convicted()
        # It pays none of them, and goes on from the revision.
        (report,) = read_reports(watching.board.reports, world.spec, WATCHER.hotkey)
        assert all(member.lie and member.round_score == 0 for member in report.members)
        assert "not led on from here" not in watching.board.waiting_for
        standby = assemble(may_lead(world))
        await standby.driver.step()
        world.clock.advance(20.0)
        assert await standby.board.leadership.try_lead()

    asyncio.run(go())


def test_what_was_committed_can_be_merged_again_and_verify_names_the_liars(dataset: Dataset) -> None:
    world = lied(dataset)
    state, reader = world.log(), StoreReader(world.store)
    memory, notes = rebuild(reader, state, Revision(1), ShardId(0))
    assert notes == ()
    assert weights_hash(memory.weights) == state.head_node.shards[0].weights_sha256
    report = verify_run(world.store, world.spec.run)
    assert {found.hotkey for _, found in report.wrong_means} == {miner.signer.hotkey for miner in world.miners}
    assert report.merges == 1
    assert sum("holds a lie of" in line for line in summary(report)) == len(report.wrong_means)


def test_a_lie_that_does_harm_is_found_before_any_delta_is_suspected(dataset: Dataset) -> None:
    world = World(dataset, reduce=UNDRAWN)
    with reduction_events() as events:
        asyncio.run(play_round(world, dict.fromkeys(range(MINERS), harmful)))
    assert events == [("reduced", 3, 0), ("means_dropped",), ("reduced", 0, 0)]
    assert world.log().head_node.shards == bytes_of_a_leader_alone(dataset)
    assert world.log().head_node.reduced is None
    assert liars(world) == set(range(MINERS))


@pytest.mark.parametrize("cut", ["word", "mean"])
def test_what_can_not_be_read_accuses_nobody(dataset: Dataset, tmp_path: Path, cut: str) -> None:
    """Words or means that a commit went by are not there: it is not proved, and nobody is blamed for it."""
    world = lied(dataset)
    for info in list(world.store.list(keys.run_prefix(world.spec.run))):
        parts = keys.parse_key(world.spec.run, info.key)
        assert parts is not None
        if parts.kind == {"word": "reduction", "mean": "mean"}[cut]:
            world.store.delete(info.key)

    async def go() -> None:
        watching = follower(world, tmp_path)
        for _ in range(10):
            await watching.driver.step()
            world.clock.advance(5.0)
        assert list(watching.convictions.everything()) == []

    asyncio.run(go())
    with pytest.raises(VerifyError):
        verify_run(world.store, world.spec.run)


@pytest.mark.parametrize("length", ["longer", "no float", "one value", "nothing"])
def test_a_mean_of_another_length_than_its_partition_is_its_leaders_fault_and_ends_nobodys_process(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    """A leader and its own miners sign and take it."""
    bodies: dict[str, Callable[[F32], bytes]] = {
        "longer": lambda values: values.tobytes() + b"\0" * 4,
        "no float": lambda values: values.tobytes()[:-1],
        "one value": lambda values: values.tobytes()[:4],
        "nothing": lambda _: b"",
    }
    world = forged_round(dataset, monkeypatch, lambda mean: mean + np.float32(0.3), bodies[length])

    async def go() -> None:
        watching, [found] = await watched(world, tmp_path)
        assert (found.kind, found.accused) == ("merged_wrongly", VALIDATOR.hotkey)
        assert "not led on from here" in watching.board.waiting_for

    asyncio.run(go())
    with pytest.raises(VerifyError):
        verify_run(world.store, world.spec.run)


def test_nobody_leads_on_from_lies_that_do_harm_though_a_leader_let_them_pass(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that makes common cause with all owners: what it commits is measured by those who follow."""
    noise = np.random.default_rng(0)
    world = forged_round(dataset, monkeypatch, lambda mean: mean + 3 * noise.standard_normal(len(mean)))

    async def go() -> None:
        watching, found = await watched(world, tmp_path)
        assert {one.kind for one in found} == {"reduced_wrongly"}
        assert "not led on from here" in watching.board.waiting_for
        standby = assemble(may_lead(world))
        for _ in range(80):
            await standby.driver.step()
            world.clock.advance(0.5)
        assert not standby.board.leadership.leading

    asyncio.run(go())


def test_a_lie_that_the_leader_caught_is_proved_by_the_plan_and_outlives_the_leader(dataset: Dataset) -> None:
    world = World(dataset, reduce=ReduceSpec("butterfly", 4, 2, 4))
    validator = asyncio.run(play_round(world, {1: lie}))
    liar = world.miners[1].signer.hotkey
    reader, log = StoreReader(world.store), LogReader(StoreReader(world.store), world.spec)
    found = list(validator.convictions.everything())
    assert {(one.kind, one.accused) for one in found} == {("reduced_wrongly", liar)}
    assert all(recheck(reader, log, one).proved for one in found)
    asyncio.run(validator.convictions.flush())
    again = world.validator()
    assert again.board.members.bars.of(liar).until > 1
    assert set(again.driver._following.lies_of(RoundId(0))) == {liar}


def test_a_leader_that_merges_something_else_than_what_it_names_is_convicted(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the words of honest miners for means of its own."""
    honest = merging.merge_plan

    def lying(state: RunState, plan: RoundFrozen, base: Memories, reader: ObjectReader, means: Vectors) -> Results:
        return honest(state, plan, base, reader, {shard: values / 2 for shard, values in means.items()})

    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey), reduce=UNDRAWN)
    monkeypatch.setattr(merging, "merge_plan", lying)
    asyncio.run(play_round(world, {}))
    monkeypatch.setattr(merging, "merge_plan", honest)

    async def go() -> None:
        _, [found] = await watched(world, tmp_path)
        assert (found.kind, found.accused) == ("merged_wrongly", VALIDATOR.hotkey)

    asyncio.run(go())


def test_honest_owners_are_not_convicted_and_a_false_conviction_is_not_proved(dataset: Dataset, tmp_path: Path) -> None:
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey), reduce=UNDRAWN)
    asyncio.run(play_round(world, {}))
    reader, log = StoreReader(world.store), LogReader(StoreReader(world.store), world.spec)
    other = lied(dataset)

    async def go() -> None:
        assert (await watched(world, tmp_path / "honest"))[1] == []
        _, [true, *_] = await watched(other, tmp_path / "lied")
        node = world.log().revisions[Revision(1)]
        fault = true.reduced_wrongly
        assert fault is not None
        assert node.plan_seq is not None
        assert node.plan_sha256 is not None
        moved = replace(true, seq=node.plan_seq, slot_sha256=node.plan_sha256)
        assert not recheck(reader, log, moved).proved
        there, lied_of = StoreReader(other.store), LogReader(StoreReader(other.store), other.spec)
        for lie_of in (
            {"hotkey": VALIDATOR.hotkey},
            {"shard": ShardId(9)},
            {"partition": 99},
            {"found": Sha256("0" * 64)},
        ):
            bent = replace(fault, mean=replace(fault.mean, **lie_of))  # type: ignore[arg-type]  # fields by name
            assert not recheck(there, lied_of, replace(true, reduced_wrongly=bent)).proved
        leader = replace(true, reduced_wrongly=None, merged_wrongly=MergedWrongly(Revision(1), ()))
        assert not recheck(there, lied_of, leader).proved

    asyncio.run(go())
