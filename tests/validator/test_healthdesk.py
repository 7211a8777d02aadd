"""Slow lines on a whole validator: found as one group, probed, spared and worked around, released; and remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from common.data.dataset import Dataset
from common.healthreport import HealthReport
from common.reports import Report
from common.timeouts import LEASE_S
from common.typed import from_json
from common.units import Hotkey
from common.wire import Findings, MinerStatus
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import until_committed
from tests.validator.slowlines import MINERS, Lines, Prober, fleet
from tests.validator.test_following import WATCHER, caught_up, may_lead
from tests.validator.world import World
from validator.care import Care
from validator.health.evidence import Evidence, Kind
from validator.health.labels import Place
from validator.health.ladder import Rung
from validator.health.monitor import Judgement, Monitor
from validator.process import Validator, assemble
from validator.scoring.reports import find_reports

CALM_ROUNDS = 15
MOST_ROUNDS = 10
"""Within which each turn of the story comes."""


@dataclass
class Story:
    """What was seen at each turn of it."""

    behind: frozenset[Hotkey] = frozenset()
    calm: Report | None = None
    cares: dict[str, dict[Hotkey, Care]] = field(default_factory=dict)
    owners: dict[str, set[Hotkey]] = field(default_factory=dict)
    status: dict[Hotkey, MinerStatus] = field(default_factory=dict)
    report: Report | None = None
    findings: Findings | None = None
    """What anybody is told who asks."""
    last: Report | None = None
    verdict_after: int = 0
    probed: list[frozenset[Hotkey]] = field(default_factory=list)


class Teller:
    """Ten miners and the validators that lead them."""

    def __init__(self, world: World) -> None:
        self.world, self.lines, self.story = world, Lines(world), Story()
        self.prober = Prober(self.lines, overhead=2.5)
        self.head = 0

    async def tell(self) -> Story:
        world, story = self.world, self.story
        await world.begin(MINERS)
        await world._register(WATCHER)
        self.lines.begin()
        story.behind = self.lines.behind
        validator = self.hired(world.validator())
        await self.rounds(validator, CALM_ROUNDS)
        story.calm = self.newest(VALIDATOR.hotkey)
        self.lines.throttle(2.0)
        story.verdict_after = await self.until(validator, lambda: bool(validator.board.health.cares))
        story.cares["first"] = dict(validator.board.health.cares)
        story.status = {row.hotkey: row for row in validator.service.status().miners}
        story.report = self.newest(VALIDATOR.hotkey)
        story.findings = validator.service.findings()

        again = self.hired(world.validator())
        world.clock.advance(2 * LEASE_S)
        await self.rounds(again, 1)
        story.cares["restarted"] = dict(again.board.health.cares)
        story.owners["restarted"] = self.owners()

        heir = self.hired(assemble(may_lead(world)))
        await caught_up(heir, self.head)
        story.cares["before the takeover"] = dict(heir.board.health.cares)
        world.clock.advance(2 * LEASE_S)
        await self.rounds(heir, 1)
        story.cares["taken over"] = dict(heir.board.health.cares)
        story.owners["taken over"] = self.owners()

        self.lines.slow = {}
        await self.until(heir, lambda: not heir.board.health.cares)
        await self.until(heir, lambda: bool(self.owners() & story.behind))
        story.last = self.newest(WATCHER.hotkey)
        story.probed = [asked[Kind.UPLINK] for asked in self.prober.asked if Kind.UPLINK in asked]
        return story

    def hired(self, validator: Validator) -> Validator:
        validator.board.health.prober = self.prober
        return validator

    async def rounds(self, validator: Validator, count: int) -> None:
        for _ in range(count):
            self.head += 1
            await until_committed(self.world, validator, self.lines.turn, self.head)

    async def until(self, validator: Validator, wanted: Callable[[], bool]) -> int:
        for count in range(1, MOST_ROUNDS + 1):
            await self.rounds(validator, 1)
            if wanted():
                return count
        raise AssertionError(f"not within {MOST_ROUNDS} rounds: {validator.board.health.cares}")

    def newest(self, hotkey: Hotkey) -> Report:
        found = find_reports(self.world.store, self.world.spec.run, hotkey).newest
        assert found is not None
        return found

    def owners(self) -> set[Hotkey]:
        """Who had duties in the newest round that was dealt."""
        return self.lines.dealt[max(self.lines.dealt)]


class Broken(Monitor):
    """One with a mistake in it."""

    def look(self, evidence: Evidence, places: Mapping[Hotkey, Place]) -> Judgement:
        raise ZeroDivisionError("a mistake of ours")


def test_a_mistake_in_the_judging_of_health_ends_no_round(dataset: Dataset) -> None:
    world = fleet(dataset)

    async def go() -> None:
        await world.begin(MINERS)
        validator, lines = world.validator(), Lines(world)
        validator.board.health.monitor = Broken()
        await until_committed(world, validator, lines.turn, 2)

    asyncio.run(go())
    assert world.log().rounds_aborted == 0


@pytest.fixture(scope="module")
def story(dataset: Dataset) -> Story:
    world = fleet(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))
    return asyncio.run(Teller(world).tell())


def test_calm_rounds_find_nothing_and_leave_a_past(story: Story) -> None:
    assert story.calm is not None
    assert story.calm.health is not None
    assert story.calm.health.findings == ()
    machines = story.calm.health.machines
    assert len(machines) == MINERS
    for rate in (rate for machine in machines for rate in (machine.compute, machine.uplink)):
        assert rate is not None
        assert rate.usual is not None
    assert all(machine.downlink is not None for machine in machines), "owners were seen to read"


def test_a_slow_address_is_one_verdict_over_its_machines_in_the_signed_report(story: Story) -> None:
    assert story.verdict_after <= 3
    assert story.report is not None
    assert story.report.health is not None
    (found,) = [one for one in story.report.health.findings if one.stage == "verdict"]
    assert (found.kind, found.blame, found.probed) == ("uplink", "group", True)
    assert "203.0.113.0/24" in found.name
    assert {case.hotkey for case in found.cases} == story.behind


def test_whom_a_verdict_names_is_told_what_is_done_and_why(story: Story) -> None:
    assert story.cares["first"].keys() == story.behind
    for hotkey in story.behind:
        assert story.status[hotkey].health.startswith("no reduce duties")
        assert "203.0.113.0/24" in story.status[hotkey].duties
        assert story.cares["first"][hotkey].rung is Rung.SMALLER_SHARE
        assert story.cares["first"][hotkey].awaited
    assert all(not row.health for hotkey, row in story.status.items() if hotkey not in story.behind)


def test_whoever_asks_the_leader_is_told_what_the_report_says(story: Story) -> None:
    assert story.findings is not None
    assert story.findings.leading
    assert story.findings.health is not None
    assert story.report is not None
    assert from_json(HealthReport, story.findings.health, "bad_health") == story.report.health


def test_a_groups_fault_costs_no_strike_and_what_it_brings_is_still_paid(story: Story) -> None:
    assert story.last is not None
    for report in (story.report, story.last):
        assert report is not None
        for member in report.members:
            assert (member.barred_until, member.lateness, member.excuses, member.lie) == (0, None, None, "")
    assert all(member.score > 0 for member in story.last.members)


def test_only_whom_the_alarm_names_is_probed(story: Story) -> None:
    assert {hotkey for asked in story.probed for hotkey in asked} == story.behind


@pytest.mark.parametrize("who", ["restarted", "taken over"])
def test_who_goes_on_knows_the_verdict_and_deals_around_it(story: Story, who: str) -> None:
    assert story.cares["before the takeover"] == {}, "a follower cares for nobody"
    assert story.cares[who].keys() == story.behind
    assert story.owners[who]
    assert not story.owners[who] & story.behind


def test_clean_probes_release_them_and_they_have_duties_again(story: Story) -> None:
    assert story.last is not None
    assert story.last.health is not None
    assert story.last.health.findings == ()
