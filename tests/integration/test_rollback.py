"""Six miners through pause, abort and a rollback five revisions back, all by the real command: none restarts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from common.reports import Report
from common.runlog.entries import RolledBack, RoundAborted
from common.runlog.rules import ORDERED
from common.units import Hotkey
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.localrun import brigade
from tests.support.rig import Rig
from tests.support.rigging import running
from validator.scoring.reports import read_reports

MINERS = [f"miner-{number}" for number in range(1, 7)]
BACK = 5
RISE_NATS = 0.3
"""More than one short round moves the loss, less than five do."""


def order(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    return brigade("run", *words, "--dir", str(rig.folder), "--run", rig.spec.run)


def test_a_run_goes_back_five_revisions_and_on_again_with_six_miners_running(tmp_path: Path) -> None:
    with running(tmp_path / "run", spec_for(6), miners=6) as rig:
        rig.start_validator()
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        pids = {name: part.process.pid for name, part in rig.parts.items()}
        rig.until(lambda: rig.head >= BACK + 1, "revisions to go back over")

        done = order(rig, "pause")
        assert done.returncode == 0, done.stderr
        rig.until(lambda: rig.state is not None and rig.state.paused is not None, "the pause")
        before = rig.state
        assert before is not None
        target = before.revisions[before.lineage(before.head)[-1 - BACK].revision]
        refused = order(rig, "rollback", "--to", str(before.next_revision))
        assert refused.returncode == 2, "nobody goes back to what is not there"

        done = order(rig, "rollback", "--to", str(target.revision))
        assert done.returncode == 0, done.stderr
        rig.until(lambda: rig.head == target.revision, "the rollback")
        for name in MINERS:
            rig.until(lambda name=name: held_again(rig, name, target.revision, target.sha256), f"{name} to hold it")
        done = order(rig, "resume")
        assert done.returncode == 0, done.stderr
        rig.until(lambda: rig.open_round is not None, "a round on the target")
        done = order(rig, "abort-round")
        assert done.returncode == 0, done.stderr
        rig.until(lambda: rig.head > before.head, "a revision on the target")
        commits(rig, 1)
        begun_again = rig.committed()[-1]
        assert set(begun_again.members) <= set(MINERS)

        after = rig.state
        assert after is not None
        first = after.revisions[before.next_revision]
        assert (first.parent, first.from_reset) == (target.revision, True)
        assert after.revisions[target.revision].sha256 == target.sha256
        assert {name: part.process.pid for name, part in rig.parts.items()} == pids
        reports = rig.until(lambda: reported(rig, first.revision), "the report of the first round on the target")
        loss = {report.revision: report.heldout_loss for report in reports if report.committed}
        assert loss[first.revision] < loss.get(target.revision, loss[before.head]) + RISE_NATS

        done = rig.verify()
        assert done.returncode == 0, done.stdout + done.stderr
        told = order(rig, "log").stdout
        assert f"goes back to revision {target.revision}, as its owner orders" in told
        ends = [entry.data for entry in rig.entries if isinstance(entry.data, RoundAborted)]
        assert [end.code for end in ends if end.command_sha256] == [ORDERED]
        assert sum(isinstance(entry.data, RolledBack) for entry in rig.entries) == 1


def held_again(rig: Rig, name: str, revision: int, sha256: str) -> bool:
    """The miner says that it has proved the revision's weights after it went back."""
    lines = [line for path in rig.logs.glob("*") if name in path.name for line in path.read_text().splitlines()]
    back = [i for i, line in enumerate(lines) if f"goes on from revision {revision}:" in line]
    return bool(back) and any(f"holds revision {revision}, weights {sha256[:12]}" in line for line in lines[back[0] :])


def reported(rig: Rig, revision: int) -> list[Report]:
    reports = read_reports(rig.store, rig.spec, Hotkey(rig.spec.validators[0]))
    return reports if any(report.revision == revision for report in reports) else []
