"""The leader is killed, another one stopped and woken again, inside a round: the standby finishes that same round.

Miners are never started again, and the log has one history that verifies.
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.runlog.entries import RevisionCommitted
from common.units import RoundId
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.rig import Rig
from tests.support.rigging import running

MINERS = ["miner-1", "miner-2"]
FIRST, SECOND = "validator", "validator-2"


@dataclass(frozen=True)
class Takeover:
    """A round that was open when its leader went away, and who committed it."""

    round: RoundId
    committer: str


@dataclass(frozen=True)
class Story:
    killed: Takeover
    stopped: Takeover
    miners_alive: bool
    verified: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder: Path = tmp_path_factory.mktemp("takeover") / "run"
    with running(folder, spec_for(2), miners=2, validators=2) as rig:
        rig.start_validator()
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        rig.start_validator(name=SECOND)
        rig.until(lambda: following(rig, SECOND), "the standby following")
        rig.until(lambda: rig.open_round, "an open round")
        rig.parts[FIRST].kill()
        killed = taken_over(rig)
        rig.start_validator()
        rig.until(lambda: rig.status and not rig.status.leading and rig.status.term == 2, "the first one following")
        rig.until(lambda: rig.open_round, "another open round")
        rig.parts[SECOND].signal(signal.SIGSTOP)
        stopped = taken_over(rig)
        rig.parts[SECOND].signal(signal.SIGCONT)
        commits(rig, 2)
        alive = all(rig.parts[name].ended() is None for name in MINERS)
        return Story(killed, stopped, alive, rig.verify())


def following(rig: Rig, name: str) -> bool:
    return any("following" in path.read_text() for path in (rig.logs / name).glob("*.log"))


def taken_over(rig: Rig) -> Takeover:
    """The leader is gone: wait for the first commit of the next term. Its round is the one that the leader left open,
    if it had one open: it may have committed, and not begun the next, in its last moment."""
    rig.read_log()
    term, left = rig.state.term if rig.state else 0, rig.open_round
    names = {wallet.hotkey_ss58: wallet.name for wallet in rig.wallets.validators}

    def committed() -> Takeover | None:
        for entry in rig.entries:
            if isinstance(entry.data, RevisionCommitted) and entry.term > term:
                return Takeover(entry.data.round, names[entry.signer])
        return None

    first = rig.until(committed, "a commit of the new leader")
    assert left in (None, first.round), f"round {first.round} was committed first, not {left}"
    return first


def test_the_standby_commits_the_round_of_the_killed_leader(story: Story) -> None:
    assert story.killed.committer == SECOND


def test_the_standby_commits_the_round_of_the_stopped_leader(story: Story) -> None:
    assert story.stopped.committer == FIRST


def test_no_miner_ended(story: Story) -> None:
    assert story.miners_alive


def test_the_woken_leader_did_no_harm(story: Story) -> None:
    assert story.verified.returncode == 0, story.verified.stdout + story.verified.stderr
