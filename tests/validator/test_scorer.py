"""The scorer against a storage that fails: a report is made once, and put until it lies there."""

from __future__ import annotations

import asyncio

import pytest

from common import keys
from common.errors import Retryable
from tests.support.specs import VALIDATOR
from tests.validator.world import World, drive
from validator.process import Validator
from validator.scoring.reports import read_reports


def test_a_report_whose_put_failed_is_put_again_with_the_same_bytes(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        queued = validator.scorer._queue.get_nowait()
        world.store.lose_next_reply(key_part="/reports/")
        with pytest.raises(Retryable):
            await validator.scorer.score(queued)
        miner = world.miners[0]
        miner.total += 64
        miner.beat(validator)  # grows between the two tries
        await validator.scorer.score(queued)
        return validator

    validator = asyncio.run(go())
    assert len(list(world.store.list(keys.reports_prefix("demo", VALIDATOR.hotkey)))) == 1
    assert [report.round for report in read_reports(world.store, world.spec, VALIDATOR.hotkey)] == [0]
    member = next(found for found in validator.board.members if found.hotkey == world.miners[0].signer.hotkey)
    assert member.account.growth().tokens == 64, "what came after the report was signed is of the next one"
