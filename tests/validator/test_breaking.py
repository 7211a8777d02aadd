"""Machines that flap, cut short or boast, on a whole validator: by what it sees itself, up to the duties."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from common.data.dataset import Dataset
from common.records import sign_manifest
from common.reports import MemberReport, Report
from common.runlog.remerge import read_plan
from common.store.multipart import part_digests
from common.store.reader import StoreReader
from common.timeouts import LEASE_S
from common.units import Hotkey
from common.wire import MinerStatus, MultipartTarget, SubmissionReply
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import UNDRAWN, until_committed
from tests.validator.slowlines import Lines
from tests.validator.world import Made, Miner, World
from validator.health.breaks import Attempts, Break
from validator.health.ladder import Rung
from validator.healthdesk import HealthDesk
from validator.intake import Intake
from validator.presence import Presence
from validator.process import Validator
from validator.scoring.breakreports import Trouble, troubles_in
from validator.scoring.reports import find_reports
from validator.uploads import Uploads

MINERS = 5
CUTS, FLAPS, BOASTS = range(3)
SILENCE_S, STRETCH_S = 1.0, 4.0
MOST_ROUNDS = 14
PART = 1024


@dataclass
class Breaking(Lines):
    """One cuts every upload short at first, one is silent for a while in every stretch."""

    async def turn(self, validator: Validator) -> None:
        away = self.world.clock.monotonic_s() % STRETCH_S < SILENCE_S + 0.5
        for number, miner in enumerate(self.world.miners):
            if number != FLAPS or not away:
                await self._one(number, miner, validator)

    async def send(self, number: int, miner: Miner, validator: Validator, allowed: SubmissionReply, made: Made) -> None:
        if number == CUTS:
            self.world.store.put(made.manifest.key, made.body[:-9])
            assert not (await miner.complete(validator, made)).accepted
        await super().send(number, miner, validator, allowed, made)


@dataclass
class Story:
    """What was seen."""

    hotkeys: list[Hotkey]
    found: HealthDesk | None = None
    owners: dict[str, set[Hotkey]] = field(default_factory=dict)
    status: dict[Hotkey, MinerStatus] = field(default_factory=dict)
    report: Report | None = None
    again: HealthDesk | None = None

    def troubles(self) -> dict[tuple[str, Hotkey], Trouble]:
        assert self.report is not None
        assert self.report.health is not None
        return {(one.kind, hotkey): one for one in troubles_in(self.report.health) for hotkey in one.members}


def hired(world: World) -> Validator:
    validator = world.validator()
    validator.board.health.vitals.presence = Presence(SILENCE_S, STRETCH_S)
    validator.board.health.prober = None
    return validator


async def tell(world: World) -> Story:
    await world.begin(MINERS)
    lines, validator = Breaking(world), hired(world)
    story = Story([miner.signer.hotkey for miner in world.miners])
    world.miners[BOASTS].boast = 20.0
    head, desk = 0, validator.board.health
    while len(desk.cares) < 2 or not desk.troubles.claims.off:
        head += 1
        assert head <= MOST_ROUNDS, f"not found: {desk.cares}, {desk.troubles.claims.off}"
        await until_committed(world, validator, lines.turn, head)
    story.found, story.status = desk, {row.hotkey: row for row in validator.service.status().miners}
    story.report = find_reports(world.store, world.spec.run, VALIDATOR.hotkey).newest
    again = hired(world)
    world.clock.advance(2 * LEASE_S)
    await until_committed(world, again, lines.turn, head + 1)
    story.again = again.board.health
    story.owners["after"] = lines.dealt[max(lines.dealt)]
    return story


@pytest.fixture(scope="module")
def story(dataset: Dataset) -> Story:
    return asyncio.run(tell(World(dataset, reduce=UNDRAWN)))


def test_each_is_found_for_what_it_does_and_nobody_else(story: Story) -> None:
    cuts, flaps, boasts = (story.hotkeys[number] for number in (CUTS, FLAPS, BOASTS))
    assert story.troubles().keys() == {("truncate", cuts), ("flap", flaps), ("claims", boasts)}
    assert story.troubles()["claims", boasts].text.startswith("claims 2")
    assert story.found is not None
    assert {hotkey: care.rung for hotkey, care in story.found.cares.items()} == {
        cuts: Rung.NO_DUTIES,
        flaps: Rung.NO_DUTIES,
    }


def test_both_are_told_why_they_have_no_duties(story: Story) -> None:
    for number, why in ((CUTS, "transfers short"), (FLAPS, "went and returned")):
        row = story.status[story.hotkeys[number]]
        assert row.health.startswith("no reduce duties: ")
        assert why in row.health
        assert "no reduce duties while this holds" in row.duties
    assert story.status[story.hotkeys[BOASTS]].health == ""


def test_a_restarted_validator_deals_around_them(story: Story) -> None:
    bad = {story.hotkeys[CUTS], story.hotkeys[FLAPS]}
    assert story.again is not None
    assert story.again.cares.keys() == bad
    assert story.owners["after"]
    assert not story.owners["after"] & bad


def test_it_costs_no_strike_and_no_pay(story: Story) -> None:
    assert story.report is not None
    for member in story.report.members:
        assert (member.barred_until, member.lie) == (0, "")
        assert member.score > 0


Row = tuple[str, int, float, float]


def played(dataset: Dataset, boast: float) -> tuple[list[dict[Hotkey, Row]], list[MemberReport], set[Hotkey]]:
    """Three rounds of four miners, one of which claims so many times what it does: plans, reports, who had duties."""
    world = World(dataset, reduce=UNDRAWN)
    lines = Lines(world)

    async def go() -> None:
        await world.begin(4)
        world.miners[0].boast = boast
        validator = hired(world)
        for head in (1, 2, 3):
            await until_committed(world, validator, lines.turn, head)
        assert validator.board.members.bars.may_reduce(world.miners[0].signer.hotkey, 4)

    asyncio.run(go())
    run, reader = world.log(), StoreReader(world.store)
    nodes = [node for node in run.revisions.values() if node.round is not None]
    plans = [read_plan(reader, run, node).members for node in sorted(nodes, key=lambda node: node.revision)]
    newest = find_reports(world.store, world.spec.run, VALIDATOR.hotkey).newest
    assert newest is not None
    rows = [{m.hotkey: (m.decision, m.tokens, m.weight, m.scale) for m in plan} for plan in plans]
    return rows, list(newest.members), set().union(*lines.dealt.values())


@pytest.mark.parametrize("boast", [0.25, 50.0])
def test_a_liar_gains_nothing(dataset: Dataset, boast: float) -> None:
    honest, lying = played(dataset, 1.0), played(dataset, boast)
    assert lying[0] == honest[0], "shares are what they are without the lie"
    assert lying[2] == honest[2], "and so are duties"
    for told, true in zip(lying[1], honest[1], strict=True):
        assert (told.hotkey, told.tokens_merged, told.timeliness) == (true.hotkey, true.tokens_merged, true.timeliness)
        assert (told.proven_tokens_per_s, told.barred_until, told.lie) == (true.proven_tokens_per_s, 0, "")
        # Quality is measured on samples that are drawn after each plan, and those of the two runs differ.
        assert told.score == pytest.approx(true.score, rel=0.2)


def test_parts_that_are_missing_though_all_are_said_to_be_there_are_a_transfer_cut_short(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(3)
        validator, miner = hired(world), world.miners[0]
        while validator.board.round is None:
            await validator.driver.step()
        made, vitals = miner.make(world.log()), validator.board.health.vitals
        intake, parts = Intake(validator.board, Uploads(world.store, PART)), part_digests(made.body, PART)
        manifest = sign_manifest(made.manifest, miner.signer).to_json()
        reply = await intake.submit(miner.caller, manifest, parts)
        assert isinstance(reply.upload, MultipartTarget)
        assert reply.upload.missing > 1
        named = made.manifest
        for _ in range(3):
            done = await intake.complete(miner.caller, named.round, named.shard, named.delta.sha256)
            assert (done.accepted, done.code) == (False, "not_uploaded")
        assert vitals.take_attempts(0.0) == {Break.TRUNCATE: {miner.signer.hotkey: Attempts(1, 1)}}

    asyncio.run(go())
