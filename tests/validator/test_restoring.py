"""What a new leader finds in the bucket, and which samples a manifest may name."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from common import keys
from common.records import Manifest, SampleRange
from common.runlog.state import RunState
from common.units import Revision, RoundId
from tests.validator.world import World, drive, steps
from validator.bodies import RememberingReader
from validator.checks import check_streams
from validator.restoring import NEWEST_READ, restore
from validator.submissions import Submission


def restored(world: World, reader: RememberingReader) -> list[Submission]:
    state = world.log()
    assert state.open_round is not None
    return restore(world.store, reader, state, state.open_round, {}, 7.0)


async def three_drips(world: World) -> RememberingReader:
    await world.begin()
    validator = world.validator(until=1)
    await steps(world, validator, 2)
    for count in (1, 2, 3):
        await world.miners[0].drip(validator, count)
        world.clock.advance(1.0)
    await world.miners[1].deliver(validator)
    return validator.board.reader


def test_of_each_line_the_newest_drips_are_read_and_finals_count_as_checked(world: World) -> None:
    reader = asyncio.run(three_drips(world))
    found = restored(world, reader)
    drips = [submission for submission in found if not submission.final]
    assert [submission.manifest.steps for submission in drips] == [2, 3]
    assert len(drips) == NEWEST_READ
    assert all(submission.complete and submission.finding is None for submission in drips)
    [final] = [submission for submission in found if submission.final]
    assert final.finding is not None
    assert final.finding.ok
    assert final.manifest.signer == world.miners[1].signer.hotkey


def test_an_object_that_is_no_manifest_is_passed_by(world: World) -> None:
    reader = asyncio.run(three_drips(world))
    manifests = [info.key for info in world.store.list(keys.run_prefix("demo")) if "/rounds/" in info.key]
    for key in (key for key in manifests if key.endswith(".json")):
        world.store.put(key, b"{}")
    assert restored(world, reader) == []


def after_two_revisions(world: World) -> tuple[RunState, Manifest]:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=3)
        await drive(world, validator, 2)
        await steps(world, validator, 2)

    asyncio.run(go())
    state = world.log()
    return state, world.miners[0].make(state).manifest


def part(round_id: int, base: int, start: int, count: int) -> SampleRange:
    return SampleRange(RoundId(round_id), Revision(base), start, count)


@pytest.mark.parametrize(
    ("samples", "good"),
    [
        ((part(2, 2, 0, 8),), True),
        ((part(0, 0, 5, 2), part(1, 1, 0, 4), part(2, 2, 0, 2)), True),
        ((part(2, 2, 0, 4), part(2, 2, 4, 4)), True),
        ((part(2, 2, 0, 4), part(2, 2, 3, 4)), False),
        ((part(2, 2, 0, 4), part(1, 1, 0, 4)), False),
        ((part(0, 1, 0, 4),), False),
        ((part(2, 1, 0, 4),), False),
        ((part(1, 0, 0, 4),), False),
    ],
)
def test_samples_come_from_streams_that_there_were(world: World, samples: tuple[SampleRange, ...], good: bool) -> None:
    state, manifest = after_two_revisions(world)
    finding = check_streams(state, dataclasses.replace(manifest, samples=samples))
    assert finding.ok is good, finding.reason
    assert finding.ok or finding.code == "bad_samples"
