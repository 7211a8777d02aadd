"""A leader stopped at any of its effects for longer than the lease, replaced, and woken: it changes nothing any more.

The standby takes over and commits while the leader stands in the middle of one storage operation; then that operation
goes on, as after SIGCONT. Clocks are virtual; both processes have keys of the storage, and nobody tells them apart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from common import keys
from common.data.dataset import Dataset
from common.errors import RemoteError
from common.runlog.verify import verify_run
from common.timeouts import LEASE_S
from common.units import Sha256
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, may_lead
from tests.validator.world import World, drive, turn
from validator.process import Parts, assemble

EFFECTS = frozenset({"put", "delete", "presign_put", "create_multipart", "complete_multipart", "abort_multipart"})


class Stopping:
    """A store that stops its process before its n-th effect, until ``meanwhile`` has come to its end."""

    def __init__(self, world: World, meanwhile: Callable[[], Coroutine[Any, Any, None]], at: int | None) -> None:
        self._store = world.store
        self._meanwhile = meanwhile
        self._at = at
        self.effects: list[tuple[str, str]] = []
        self.woken = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in EFFECTS:
            return found

        def act(key: str, *args: Any, **named: Any) -> Any:
            self._stop(name, key)
            return found(key, *args, **named)

        return act

    def _stop(self, name: str, key: str) -> None:
        self.effects.append((name, key))
        if len(self.effects) == self._at:
            life = threading.Thread(target=lambda: asyncio.run(self._meanwhile()))
            life.start()
            life.join()
            self.woken = True


class Pair:
    """A leader that will be stopped, and the standby that takes its place."""

    def __init__(self, dataset: Dataset, at: int | None, known: World | None = None) -> None:
        self.world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))
        self.world.trained = known.trained if known is not None else self.world.trained
        self.disk = Stopping(self.world, self._take_over, at)
        self.objects: dict[str, bytes] = {}
        self.history: list[Sha256] = []

    async def begin(self) -> None:
        await self.world.begin()
        await self.world._register(WATCHER)
        self.leader = assemble(self.parts())

    def parts(self) -> Parts:
        return dataclasses.replace(may_lead(self.world), signer=VALIDATOR, store=self.disk)

    async def _take_over(self) -> None:
        """While the leader stands still: the lease expires, the standby commits, and opens the next round."""
        world, done = self.world, self.world.log().head
        self.heir = assemble(may_lead(world))
        await self.heir.driver.step()
        world.clock.advance(LEASE_S + 1.0)
        await drive(world, self.heir, done + 1)
        while self.heir.board.round is None:
            await self.heir.driver.step()
        self.objects = self.everything()
        self.history = self.lineage()

    def everything(self) -> dict[str, bytes]:
        """Every object but the lease, which belongs to nobody."""
        store, lease = self.world.store, keys.lease_key(self.world.spec.run)
        listed = [info.key for info in store.list("runs/") if info.key != lease]
        return {key: store.get(key, max_bytes=1 << 24).body for key in listed}

    def lineage(self) -> list[Sha256]:
        state = self.world.log()
        return [node.sha256 for node in state.lineage(state.head)]

    async def until_stopped(self, revision: int) -> bool:
        """Drive the leader; whether it was stopped and woken. What it does after that it does without an answer."""
        world = self.world
        for _ in range(300):
            await self.leader.driver.step()
            for miner in world.miners if not self.disk.woken else ():
                try:
                    await turn(miner, self.leader)
                    answered = True
                except RemoteError:
                    answered = False
                if self.disk.woken:
                    assert not answered, f"an answer of the woken leader to {miner.signer.hotkey}"
                    break
            if self.disk.woken:
                return True
            if world.log().head >= revision and self.leader.board.round is None:
                return False
            world.clock.advance(0.25)
        raise AssertionError(self.leader.board.waiting_for)

    async def woken(self) -> None:
        """Let the woken leader do what it likes, and look at what it has changed."""
        for _ in range(4):
            await self.leader.driver.step()
            await self.leader.board.leadership.renew(force=True)
        assert not self.leader.board.leadership.leading
        now = self.everything()
        changed = [key for key, body in self.objects.items() if now.get(key) != body]
        assert not changed, f"the woken leader changed {changed}"
        assert self.lineage() == self.history
        state = self.world.log()
        assert state.leader == WATCHER.hotkey
        assert all(void.signer == VALIDATOR.hotkey for void in state.voids)
        await drive(self.world, self.heir, state.head + 1)
        verify_run(self.world.store, self.world.spec.run)


def run(dataset: Dataset, at: int | None, revision: int, known: World | None = None) -> Pair:
    pair = Pair(dataset, at, known)

    async def go() -> None:
        await pair.begin()
        if await pair.until_stopped(revision):
            await pair.woken()
        else:
            assert at is None

    asyncio.run(go())
    return pair


def test_a_leader_stopped_at_any_effect_and_woken_changes_nothing(dataset: Dataset) -> None:
    whole = run(dataset, None, 1)
    names = {name for name, _ in whole.disk.effects}
    assert {"put", "presign_put"} <= names
    for at, (name, key) in enumerate(whole.disk.effects, 1):
        pair = run(dataset, at, 1, whole.world)
        assert pair.disk.woken, f"never stopped at {name} of {key}"
