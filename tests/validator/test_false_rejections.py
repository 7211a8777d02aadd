"""A plan that rejects an honest delta for what it is not: followers look at the bytes again and convict."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.codec.params import F32
from common.convictions import decode_conviction
from common.data.dataset import Dataset
from common.runlog.entries import PlanMember
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.units import Hotkey
from tests.validator.test_following import caught_up, follower
from tests.validator.world import World, drive
from validator import effects
from validator.audits.recheck import recheck
from validator.judgement import judgement


def reject(hotkey: Hotkey, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's plans reject this miner for ``code``, whatever it sent."""
    honest = effects.judge

    def judge(spec: Any, base: Any, *rest: Any) -> Any:
        found = honest(spec, base, *rest)
        members = [_rejected(member, code) if member.hotkey == hotkey else member for member in found.members]
        return judgement(spec, base, members, found.coldkeys, found.watched)

    monkeypatch.setattr(effects, "judge", judge)


def _rejected(member: PlanMember, code: str) -> PlanMember:
    return dataclasses.replace(member, decision="rejected", code=code, reason="it is", weight=0.0, scale=0.0)


def empty(delta: F32) -> F32:
    return np.zeros_like(delta)


async def followed(world: World, folder: Path) -> list[str]:
    await drive(world, world.validator(), 1)
    watching = follower(world, folder)
    await caught_up(watching, 1)
    await watching.convictions.flush()
    return watching.service.status().convicted


@pytest.mark.parametrize("code", ["zero_delta", "bad_partitions", "non_finite", "ugly", "base_mismatch"])
def test_a_false_reason_convicts_and_anybody_checks_it_again(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        victim = world.miners[0].signer.hotkey
        reject(victim, code, monkeypatch)
        [told] = await followed(world, tmp_path)
        assert f"rejected the delta of {victim} in round 0 for {code}, which is false" in told
        [path] = tmp_path.glob("*.conviction.json")
        conviction = decode_conviction(path.read_bytes(), world.spec.run)
        reader = StoreReader(world.store)
        log = LogReader(reader, world.spec)
        assert recheck(reader, log, conviction).proved
        assert conviction.rejected_falsely is not None
        other = dataclasses.replace(conviction.rejected_falsely, code="another")
        assert not recheck(reader, log, dataclasses.replace(conviction, rejected_falsely=other)).proved

    asyncio.run(go())


@pytest.mark.parametrize("code", ["too_late", "no_tokens", "duplicate", "guard_suspect"])
def test_what_only_the_leader_can_know_convicts_nobody(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        reject(world.miners[0].signer.hotkey, code, monkeypatch)
        assert await followed(world, tmp_path) == []

    asyncio.run(go())


def test_a_right_reason_convicts_nobody(dataset: Dataset, tmp_path: Path) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        world.miners[0].twist = empty
        assert await followed(world, tmp_path) == []
        steps = LogReader(StoreReader(world.store), world.spec).steps()
        [plan] = [step.entry.data for step in steps if step.entry and step.entry.kind == "round_frozen"]
        assert "zero_delta" in {member.code for member in plan.members}  # type: ignore[union-attr]

    asyncio.run(go())
