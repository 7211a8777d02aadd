"""Six miners through pause, abort and a rollback five revisions back, all by the real command: none restarts."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

from common.reports import Report
from common.runlog.entries import RolledBack, RoundAborted
from common.runlog.rules import ORDERED
from common.spec import RunSpec
from common.units import Hotkey, Revision
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.localrun import brigade
from tests.support.rig import Rig
from tests.support.rigging import running
from validator.scoring.reports import read_reports
from validator.up.bootstrap import Wallets

MINERS = [f"miner-{number}" for number in range(1, 7)]
BACK = 5
STEPS = 12
"""Inner steps of a round: the test needs many rounds, not long ones."""


def short_rounds(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
    spec = spec_for(len(MINERS))(netuid, wallets, data)
    tokens = spec.target_tokens(Revision(0)) * STEPS // spec.inner.steps_of(Revision(0))
    inner = replace(spec.inner, steps_schedule=(STEPS,))
    return replace(spec, inner=inner, round=replace(spec.round, target_tokens=tokens))


def order(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    return brigade("run", *words, "--dir", str(rig.folder), "--run", rig.spec.run)


def test_a_run_goes_back_five_revisions_and_on_again_with_six_miners_running(tmp_path: Path) -> None:
    with running(tmp_path / "run", short_rounds, miners=6) as rig:
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
            rig.until(lambda name=name: holds_head(rig, name), f"{name} to hold it")
        done = order(rig, "resume")
        assert done.returncode == 0, done.stderr
        rig.until(lambda: rig.open_round is not None, "a round on the target")
        everybody(rig, signal.SIGSTOP)
        rig.until(lambda: "no_miners" in stalls(rig), "the validator to say what the round waits for")
        told = brigade("status", "--dir", str(rig.folder)).stdout
        assert "waits for miners: none has been heard" in told
        done = order(rig, "abort-round")  # nobody hands in: the round is still open when the order is read
        assert done.returncode == 0, done.stderr
        everybody(rig, signal.SIGCONT)
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
        reports = rig.until(lambda: reported(rig, 1, target.revision, first.revision), "the reports around it")
        loss = {report.revision: report.heldout_loss for report in reports if report.committed}
        untrained = next(report.heldout_loss_base for report in reports if report.revision == 1)
        assert loss[first.revision] < (loss[target.revision] + untrained) / 2, "it goes on from the target"

        done = rig.verify()
        assert done.returncode == 0, done.stdout + done.stderr
        told = order(rig, "log").stdout
        assert f"goes back to revision {target.revision}, as its owner orders" in told
        ends = [entry.data for entry in rig.entries if isinstance(entry.data, RoundAborted)]
        assert [end.code for end in ends if end.command_sha256] == [ORDERED]
        assert sum(isinstance(entry.data, RolledBack) for entry in rig.entries) == 1


def holds_head(rig: Rig, name: str) -> bool:
    """The miner has let go of its work and proved the head's weights: by its own word it lacks only a round."""
    seen = rig.miner(name)
    return seen is not None and seen.note.endswith("no round is open; waiting for the leader to open one")


def everybody(rig: Rig, number: signal.Signals) -> None:
    for name in MINERS:
        rig.parts[name].signal(number)


def stalls(rig: Rig) -> set[str]:
    return {stall.code for stall in rig.status.stalls} if rig.status else set()


def reported(rig: Rig, *revisions: int) -> list[Report]:
    reports = list(read_reports(rig.store, rig.spec, Hotkey(rig.spec.validators[0])))
    return reports if set(revisions) <= {report.revision for report in reports} else []
