"""One address with a bad line among real processes: found as one group, worked around, and released by probes.

Five miners, two of them behind an address of their own; the operator's ASN table tells the two apart, since loopback
addresses have no network. Usually two are no group and two of five are too many to blame: ten processes would do, and
cost the suite minutes, so the validator is told to make do with few (``misfit --hurry``). The larger fleet is played in
``tests/validator/test_healthdesk.py``. The story goes on by rounds; what it waits for stands in reports and status.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.reports import Report
from common.spec import RunSpec
from tests.integration.support import begun, commits, spec_for
from tests.support.localrun import brigade
from tests.support.rig import Rig
from tests.support.rigging import running
from validator.scoring.reports import find_reports
from validator.up.bootstrap import Wallets

MINERS = [f"miner-{number}" for number in range(1, 6)]
BEHIND = MINERS[-2:]
SOURCES = {name: "127.0.6.1" if name in BEHIND else "127.0.5.1" for name in MINERS}
TABLE = "127.0.5.0/24 64500\n127.0.6.0/24 64501\n"
STEPS = 16
SPEED = ("--max-tokens-per-s", "320")
LINK_BPS = 800_000.0
"""A delta of 53 KiB takes half a second, so that the line and not the machine sets the rate."""
LEFT = 1 / 3
CALM_ROUNDS = 8
"""In a hurry there is a past after six."""


@dataclass
class Story:
    """What was found at each turn."""

    calm: Report | None = None
    verdict: Report | None = None
    told: dict[str, str] = field(default_factory=dict)
    """By miner what its status says while the line is bad."""
    health: subprocess.CompletedProcess[str] | None = None
    explained: subprocess.CompletedProcess[str] | None = None
    released: Report | None = None
    bars: set[object] = field(default_factory=set)
    hotkeys: set[str] = field(default_factory=set)
    verified: subprocess.CompletedProcess[str] | None = None


def make_spec(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
    """Without drips, so that links rest between two deltas and can be probed."""
    spec = spec_for(len(MINERS), STEPS)(netuid, wallets, data)
    return dataclasses.replace(spec, round=dataclasses.replace(spec.round, drip_s=0.0, heartbeat_s=1.0))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("health") / "run"
    with running(folder, make_spec, miners=len(MINERS)) as rig:
        table = folder / "asn.txt"
        table.write_text(TABLE)
        rig.sources.update(SOURCES)
        rig.start_validator("--asn-table", str(table), wrong=("--hurry",))
        for name in MINERS:
            rig.start_miner(name, *SPEED)
            rig.lines[name].link.up.rate_bps = LINK_BPS
        begun(rig, MINERS)
        return Teller(rig).tell()


class Teller:
    """Lives through the story."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.story = rig, Story(hotkeys={str(rig.hotkey(name)) for name in BEHIND})

    def tell(self) -> Story:
        rig, story = self.rig, self.story
        commits(rig, CALM_ROUNDS)
        story.calm = self.report(lambda report: True, "a report")
        self.throttle(LEFT)
        story.verdict = self.report(lambda report: bool(self.verdicts(report)), "a verdict in a report")
        commits(rig, 1)
        story.told = {name: seen.health for name in MINERS if (seen := rig.miner(name)) is not None}
        story.health = brigade("health", "--dir", str(rig.folder))
        story.explained = brigade("explain", str(rig.hotkey(BEHIND[0])), "--dir", str(rig.folder))
        self.throttle(1.0)
        story.released = self.report(lambda report: not self.verdicts(report), "a report without a verdict")
        story.verified = rig.verify()
        return story

    def throttle(self, share: float) -> None:
        for name in BEHIND:
            self.rig.lines[name].link.up.rate_bps = share * LINK_BPS

    def report(self, wanted: Callable[[Report], bool], what: str) -> Report:
        def found() -> Report | None:
            (validator,) = self.rig.wallets.validators
            newest = find_reports(self.rig.store, self.rig.spec.run, validator.hotkey_ss58).newest
            if newest is None:
                return None
            self.story.bars |= {(member.barred_for, member.lateness, member.excuses) for member in newest.members}
            return newest if wanted(newest) else None

        return self.rig.until(found, what)

    def verdicts(self, report: Report) -> set[str]:
        assert report.health is not None
        return {case.hotkey for one in report.health.findings for case in one.cases}


def test_the_bad_address_is_one_verdict_in_the_signed_report(story: Story) -> None:
    assert story.verdict is not None
    assert story.verdict.health is not None
    (found,) = [one for one in story.verdict.health.findings if one.cases]
    assert (found.kind, found.blame, found.probed, found.name) == ("uplink", "group", True, "asn AS64501")
    assert {case.hotkey for case in found.cases} == story.hotkeys


def test_its_miners_are_told_what_is_done_and_the_others_nothing(story: Story) -> None:
    assert all(story.told[name].startswith("no reduce duties") for name in BEHIND)
    assert not any(story.told[name] for name in MINERS if name not in BEHIND)


def test_it_costs_nobody_a_strike(story: Story) -> None:
    assert story.bars == {(None, None, None)}


def test_an_operator_reads_it(story: Story) -> None:
    assert story.health is not None
    assert story.explained is not None
    assert "verdict: asn AS64501 (2 machines) uploads at" in story.health.stdout
    assert "its group's fault" in story.explained.stdout


def test_probes_release_them_when_the_line_is_good_again(story: Story) -> None:
    assert story.released is not None
    assert story.released.health is not None
    assert story.calm is not None
    assert story.released.round > story.calm.round


def test_the_run_verifies(story: Story) -> None:
    assert story.verified is not None
    assert story.verified.returncode == 0, story.verified.stdout + story.verified.stderr
