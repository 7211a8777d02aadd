"""A run whose log has just named objects for deletion, made once and copied for each test."""

from __future__ import annotations

import asyncio
import dataclasses

from common.data.dataset import Dataset
from common.spec import RetentionSpec
from common.store.memory import MemoryStore
from common.store.port import ObjectStore
from tests.support.specs import VALIDATOR
from tests.validator.test_collecting import go_on
from tests.validator.test_following import WATCHER
from tests.validator.world import Miner, World


class Retained:
    """The past of a run that two validators may lead. Its deadlines are short, so what is named may go soon."""

    def __init__(self, dataset: Dataset) -> None:
        retention = RetentionSpec(snapshots=2, revisions=2, grace_s=0.1)
        limits = dataclasses.replace(
            World(dataset).spec.round, train_deadline_s=2.0, submit_deadline_s=1.0, member_timeout_s=3.0
        )
        two = (VALIDATOR.hotkey, WATCHER.hotkey)
        self._world = World(dataset, retention=retention, round=limits, validators=two)
        self._before: dict[str, bytes] = {}
        self._named: dict[str, bytes] = {}
        asyncio.run(self._begin())

    async def _begin(self) -> None:
        await self._world.begin()
        await self._world._register(WATCHER)
        gently(self._world)
        validator = self._world.validator()
        while not self._world.log().collections:
            self._before = self._objects()
            await go_on(self._world, validator, self._world.log().head + 1)
        self._named = self._objects()

    def _objects(self) -> dict[str, bytes]:
        store = self._world.store
        return {info.key: store.get(info.key, max_bytes=1 << 30).body for info in store.list("")}

    def copied(self, store: ObjectStore | None = None, *, named: bool = True) -> World:
        """The run after the round in which the entry came, or before that, in ``store`` or one in memory; nobody leads
        it."""
        store = store or MemoryStore(self._world.clock)
        for key, body in sorted((self._named if named else self._before).items()):
            store.put(key, body)
        self._world.store = store  # type: ignore[assignment]  # with what the world wants of one
        self._world.miners = [Miner(self._world, miner.signer) for miner in self._world.miners]
        gently(self._world)
        return self._world


def gently(world: World) -> None:
    """Let the miners send a part of their steps: the whole would overshoot after some rounds."""
    for miner in world.miners:
        miner.twist = lambda delta: delta * 0.25
