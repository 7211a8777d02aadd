"""The health of miners on real processes: rates and probes reach the signed report; a killed validator goes on there.

Verdicts depend on rates, and those on the machine that the suite runs on: what follows from slow lines is played on a
clock of its own in ``tests/validator/test_healthdesk.py``.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.healthreport import HealthReport
from common.reports import Report
from common.spec import RunSpec
from tests.integration.support import SLOWED, begun, spec_for
from tests.support.localrun import brigade
from tests.support.rig import Rig
from tests.support.rigging import running
from validator.scoring.reports import find_reports
from validator.up.bootstrap import Wallets

MINERS = ["miner-1", "miner-2"]
STEPS = 10


@dataclass
class Story:
    """What was found."""

    hotkeys: set[str]
    before: HealthReport
    """In the last report before the validator was killed."""
    after: HealthReport
    """In the first one of its next process."""
    health: subprocess.CompletedProcess[str]
    explained: subprocess.CompletedProcess[str]


def make_spec(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
    """Without drips, so that links rest between two deltas and can be probed; rounds are many and short."""
    spec = spec_for(len(MINERS), steps=STEPS)(netuid, wallets, data)
    return dataclasses.replace(spec, round=dataclasses.replace(spec.round, drip_s=0.0))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    with running(tmp_path_factory.mktemp("health") / "run", make_spec, miners=len(MINERS)) as rig:
        part = rig.start_validator(wrong=("--hurry",))
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        newest(rig, whole, "a report with every rate")
        hotkey = rig.hotkey(MINERS[0])
        health = brigade("health", "--dir", str(rig.folder), "--json")
        explained = brigade("explain", str(hotkey), "--dir", str(rig.folder))
        part.kill()
        before = newest(rig, whole, "the last report of the killed one")
        rig.start_validator(wrong=("--hurry",))
        after = newest(rig, lambda report: report.round > before.round, "the next report")
        assert before.health is not None
        assert after.health is not None
        hotkeys = {str(rig.hotkey(name)) for name in MINERS}
        return Story(hotkeys, before.health, after.health, health, explained)


def newest(rig: Rig, wanted: Callable[[Report], bool], what: str) -> Report:
    def found() -> Report | None:
        (validator,) = rig.wallets.validators
        report = find_reports(rig.store, rig.spec.run, validator.hotkey_ss58).newest
        return report if report is not None and wanted(report) else None

    return rig.until(found, what)


def whole(report: Report) -> bool:
    """It knows what all of them usually do, and probes have shown how they read."""
    assert report.health is not None
    rates = [rate for one in report.health.machines for rate in (one.compute, one.uplink)]
    known = len(rates) == 2 * len(MINERS) and all(rate is not None and rate.usual is not None for rate in rates)
    return known and all(one.downlink is not None for one in report.health.machines)


def test_the_report_tells_every_rate_of_every_miner(story: Story) -> None:
    assert {str(one.hotkey) for one in story.before.machines} == story.hotkeys


def test_a_killed_validator_goes_on_from_its_report(story: Story) -> None:
    seen = {one.hotkey: one.uplink.seen for one in story.before.machines if one.uplink is not None}
    for one in story.after.machines:
        assert one.uplink is not None
        assert one.uplink.usual is not None, "it need not learn anew what is usual"
        assert one.uplink.seen >= seen[one.hotkey]


def test_an_operator_reads_it_of_the_leader(story: Story) -> None:
    assert (story.health.returncode, story.explained.returncode) == (0, 0), story.health.stderr + story.explained.stderr
    assert json.loads(story.health.stdout)["by"].startswith("the leader")
    assert "tokens/s usually" in story.explained.stdout
