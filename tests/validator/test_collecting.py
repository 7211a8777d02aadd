"""Retention as a leader carries it out: named first, deleted when nobody can be using it, finished by whoever leads."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from common import keys
from common.data.dataset import Dataset
from common.runlog.entries import RoundFrozen
from common.runlog.reader import LogReader
from common.runlog.retention import is_named
from common.runlog.verify import verify_run
from common.spec import RetentionSpec
from common.store.reader import StoreReader
from common.timeouts import LEASE_S
from common.units import Revision, ShardId
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, may_lead
from tests.validator.world import World, drive
from validator.process import Validator, assemble

GRACE_S = 5.0


def a_world(dataset: Dataset, **changes: Any) -> World:
    retention = RetentionSpec(snapshots=2, revisions=2, grace_s=GRACE_S)
    limits = dataclasses.replace(World(dataset).spec.round, train_deadline_s=12.0, submit_deadline_s=6.0)
    return World(dataset, retention=retention, round=limits, **changes)


async def go_on(world: World, validator: Validator, revision: int) -> None:
    """To a revision, with every report written and everything in the background done."""
    for target in range(world.log().head + 1, revision + 1):
        await drive(world, validator, target)
        await validator.scorer.drain()
        await validator.driver.collector.idle()


def named_and_there(world: World) -> set[str]:
    state, found = world.log(), set()
    with world.unwatched():
        for info in world.store.list(keys.run_prefix(world.spec.run)):
            parts = keys.parse_key(world.spec.run, info.key)
            if parts is not None and is_named(state, parts):
                found.add(info.key)
    return found


def age(world: World) -> None:
    world.clock.advance(12.0 + 6.0 + GRACE_S)


async def until_named(world: World, validator: Validator) -> None:
    while not world.log().collections:
        await go_on(world, validator, world.log().head + 1)
        assert world.log().head < 12, "nothing was ever named"


def test_objects_are_named_then_kept_for_the_grace_then_deleted(dataset: Dataset) -> None:
    async def go() -> None:
        world = a_world(dataset)
        await world.begin()
        deletes: list[str] = []
        world.store.before = lambda operation, key: deletes.append(key) if operation == "delete" else None
        validator = world.validator()
        await until_named(world, validator)
        named = named_and_there(world)
        assert named
        assert not deletes
        age(world)
        await go_on(world, validator, world.log().head + 2)
        assert not named & named_and_there(world)
        assert named <= set(deletes)
        report = verify_run(world.store, world.spec.run)
        assert report.state.floor > 0
        assert report.deleted > 0

    asyncio.run(go())


async def drip(world: World, validator: Validator) -> None:
    """Every miner sends a part of what it will have, into the next round."""
    while validator.board.round is None:
        await validator.driver.step()
        world.clock.advance(0.25)
    for miner in world.miners:
        miner.beat(validator)
        miner.train(64)
        await miner.drip(validator, 2)


def manifests(world: World) -> dict[str, bool]:
    """Those in the bucket, and whether a plan names them."""
    with world.unwatched():
        steps = LogReader(StoreReader(world.store), world.spec).steps()
        entries = [step.entry.data for step in steps if step.void is None and step.entry is not None]
        plans = [data for data in entries if isinstance(data, RoundFrozen)]
        named = {member.delta.sha256 for plan in plans for member in plan.members}
        listed = [info.key for info in world.store.list(keys.run_prefix(world.spec.run))]
    parsed = [(key, keys.parse_key(world.spec.run, key)) for key in listed]
    return {key: parts.sha256 in named for key, parts in parsed if parts is not None and parts.kind == "manifest"}


def test_manifests_of_replaced_drips_are_deleted_and_those_that_plans_name_are_not(dataset: Dataset) -> None:
    async def go() -> None:
        world = a_world(dataset)
        await world.begin()
        validator = world.validator()
        await drip(world, validator)
        await until_named(world, validator)
        before = manifests(world)
        replaced = {key for key, named in before.items() if not named}
        assert len(replaced) == len(world.miners)
        age(world)
        await go_on(world, validator, world.log().head + 2)
        left = manifests(world)
        assert not replaced & left.keys()
        assert before.keys() - replaced <= left.keys()
        verify_run(world.store, world.spec.run)

    asyncio.run(go())


def test_a_leader_killed_before_it_deleted_all_leaves_the_rest_to_the_next(dataset: Dataset) -> None:
    async def go() -> None:
        world = a_world(dataset)
        await world.begin()
        validator = world.validator()
        await until_named(world, validator)
        named = named_and_there(world)
        for key in sorted(named)[::2]:
            world.store.delete(key)  # what the first one came to
        age(world)
        other = world.validator()
        await go_on(world, other, world.log().head + 2)
        assert not named & named_and_there(world)
        verify_run(world.store, world.spec.run)

    asyncio.run(go())


def test_who_has_lost_the_lead_deletes_nothing(dataset: Dataset) -> None:
    async def go() -> None:
        world = a_world(dataset)
        await world.begin()
        old = world.validator()
        await until_named(world, old)
        age(world)
        await old.board.leadership.renew(force=True)
        world.clock.advance(LEASE_S + 1)  # the entry is old enough, but another may have the lease
        deletes: list[str] = []
        world.store.before = lambda operation, key: deletes.append(key) if operation == "delete" else None
        await old.driver.collector.at_boundary()
        await old.driver.collector.idle()
        assert not deletes
        assert named_and_there(world)

    asyncio.run(go())


def test_a_new_leader_makes_a_missing_snapshot_again(dataset: Dataset) -> None:
    async def go() -> None:
        world = a_world(dataset)
        await world.begin()
        await go_on(world, world.validator(), 3)
        snapshot = world.log().revisions[Revision(2)].shards[0].snapshot
        assert snapshot is not None
        key = keys.snapshot_key(world.spec.run, Revision(2), ShardId(0), snapshot.sha256)
        world.store.delete(key)
        await go_on(world, world.validator(), 4)
        assert world.store.head(key) is not None
        verify_run(world.store, world.spec.run)

    asyncio.run(go())


def test_a_validator_that_comes_after_a_deletion_checks_what_is_kept_and_leads_on(dataset: Dataset) -> None:
    async def go() -> None:
        world = a_world(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))
        await world.begin()
        await world._register(WATCHER)
        validator = world.validator()
        await until_named(world, validator)
        named = named_and_there(world)
        age(world)
        await go_on(world, validator, world.log().head + 2)
        assert not named & named_and_there(world)
        world.clock.advance(LEASE_S + 1)
        other = assemble(may_lead(world))
        for _ in range(2):
            await other.driver.step()
            world.clock.advance(LEASE_S + 1)
        await go_on(world, other, world.log().head + 2)
        report = other.board.standing.report
        assert report is not None
        assert other.board.standing.heldout_first is not None
        verify_run(world.store, world.spec.run)

    asyncio.run(go())
