"""A plan that rejects an honest delta for what it is not: followers look at the bytes again and convict."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.codec import container, dense, eliasfano, topk
from common.codec.params import F32
from common.convictions import decode_conviction
from common.data.dataset import Dataset
from common.merge import gates
from common.runlog.entries import EntryData, PlanMember, RoundFrozen
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.units import Hotkey
from tests.validator.test_following import caught_up, follower
from tests.validator.world import World, drive
from validator import checks, effects
from validator.audits.recheck import recheck
from validator.audits.rejections import LEADERS_VIEW, OF_ITS_BYTES, OTHERS
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


@pytest.mark.parametrize("code", ["zero_delta", "bad_partitions", "non_finite", "base_mismatch"])
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


def test_a_reason_that_this_version_does_not_know_convicts_nobody_and_is_no_proof(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer leader may have gates that older followers lack."""
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        victim = world.miners[0].signer.hotkey
        with monkeypatch.context() as lying:
            reject(victim, "zero_delta", lying)
            await drive(world, world.validator(), 1)
        reject(victim, "too_odd", monkeypatch)
        await drive(world, world.validator(), 2)
        watching = follower(world, tmp_path)
        await caught_up(watching, 2)
        [told] = watching.service.status().convicted
        assert "in round 0 for zero_delta" in told
        # Nor does anybody else take another validator's word for it.
        await watching.convictions.flush()
        [path] = tmp_path.glob("*.conviction.json")
        conviction = decode_conviction(path.read_bytes(), world.spec.run)
        reader = StoreReader(world.store)
        log = LogReader(reader, world.spec)
        plan = next(step.entry for step in log.steps() if step.entry and _rejects(step.entry.data, "too_odd"))
        assert isinstance(plan.data, RoundFrozen)
        assert conviction.rejected_falsely is not None
        [member] = [member for member in plan.data.members if member.code == "too_odd"]
        fault = dataclasses.replace(
            conviction.rejected_falsely, made_for=member.round, delta_sha256=member.delta.sha256, code="too_odd"
        )
        accused = dataclasses.replace(
            conviction, round=plan.data.round, seq=plan.seq, slot_sha256=plan.slot_sha256, rejected_falsely=fault
        )
        found = recheck(reader, log, accused)
        assert not found.proved
        assert "does not know the reason 'too_odd'" in found.why

    asyncio.run(go())


def _rejects(data: EntryData, code: str) -> bool:
    return isinstance(data, RoundFrozen) and any(member.code == code for member in data.members)


def test_every_reason_that_lies_in_the_bytes_is_known() -> None:
    """What the decoders and checks raise is decided by them, so that a new code is not forgotten."""
    sources = [checks, gates, container, dense, eliasfano, topk]
    text = "".join(Path(module.__file__ or "").read_text() for module in sources)
    raised = set(re.findall(r'(?:Rejected|Finding|RejectedDelta)\("([a-z_]+)"', text))
    elsewhere = LEADERS_VIEW | OTHERS | {"base_mismatch", "bad_manifest", "bad_samples"}
    assert raised - elsewhere == OF_ITS_BYTES


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
