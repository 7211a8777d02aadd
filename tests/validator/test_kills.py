"""The validator killed before every single storage operation, and rebuilt from the bucket: the same history follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common import keys
from common.data.dataset import Dataset
from common.runlog.verify import verify_run
from common.units import Sha256
from tests.validator.world import World, drive, play
from validator.process import Validator


class Killed(BaseException):
    """The process is gone, at this very operation."""


class Axe:
    """Kills whoever makes the n-th storage operation. Miners' own uploads don't count: they are other processes."""

    def __init__(self, world: World) -> None:
        self.operations: list[tuple[str, str]] = []
        self.at: int | None = None
        world.store.before = self._strike

    def _strike(self, operation: str, key: str) -> None:
        if key.endswith(".delta") and operation == "put":
            return
        self.operations.append((operation, key))
        if self.at is not None and len(self.operations) == self.at:
            raise Killed(f"{operation} {key}")


async def until_scored(world: World, start: Callable[[], Validator], revision: int) -> Validator:
    """Drive to a revision and its report; a killed validator is started again at once."""
    validator = None
    for _ in range(400):
        try:
            validator = validator or start()
            await validator.driver.step()
            await validator.scorer.drain()
            reported = validator.board.standing.report
            done = world.log().head >= revision and reported is not None and reported.revision >= revision
            if done and validator.board.round is None:
                return validator
            await play(world, validator)
        except Killed:
            validator = None
        world.clock.advance(0.25)
    raise AssertionError("the run stands still")


def history(world: World) -> list[tuple[int, Sha256, int]]:
    state = world.log()
    return [(node.revision, node.sha256, node.tokens_merged) for node in state.lineage(state.head)]


def run_once(dataset: Dataset, known: World | None, at: int | None, revision: int = 1) -> tuple[World, Axe]:
    world = World(dataset)
    if known is not None:
        world.trained = known.trained

    async def go() -> Axe:
        await world.begin()
        axe = Axe(world)
        axe.at = at
        await until_scored(world, lambda: world.validator(until=revision), revision)
        return axe

    axe = asyncio.run(go())
    world.store.before = None
    return world, axe


def test_a_kill_before_any_storage_operation_changes_nothing(dataset: Dataset) -> None:
    whole, axe = run_once(dataset, None, None)
    expected = history(whole)
    assert [revision for revision, _, _ in expected] == [0, 1]
    for at in range(1, len(axe.operations) + 1):
        world, _ = run_once(dataset, whole, at)
        assert history(world) == expected, f"killed at {axe.operations[at - 1]}"
        state = world.log()
        assert (state.rounds_committed, state.rounds_aborted) == (1, 0)
        reports = list(world.store.list(keys.reports_prefix("demo", world.spec.validators[0])))
        assert reports, f"no report after a kill at {axe.operations[at - 1]}"
    assert verify_run(world.store, "demo").merges == 1


def test_a_kill_at_any_write_of_a_later_round_rebuilds_weights_and_outer_state(dataset: Dataset) -> None:
    whole, axe = run_once(dataset, None, None, revision=2)
    expected = history(whole)
    second = next(i for i, (_, key) in enumerate(axe.operations) if key.endswith("log/000000000005.json"))
    writes = [i for i, (operation, _) in enumerate(axe.operations) if i >= second and operation == "put"]
    assert len(writes) >= 8
    for index in writes:
        world, _ = run_once(dataset, whole, index + 1, revision=2)
        assert history(world) == expected, f"killed at {axe.operations[index]}"
        assert verify_run(world.store, "demo").merges == 2


def test_a_lost_reply_to_any_append_deposes_nobody(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        for seq in range(1, 9):
            world.store.lose_next_reply(key_part=f"log/{seq:012d}")
        await drive(world, validator, 2)

    asyncio.run(go())
    state = world.log()
    assert (state.head, state.term, state.voids) == (2, 1, ())
