"""Leaders killed, stopped and cut off inside a round: the standby finishes that same round, and miners go on.

One cell of ``takeovers`` for each fault, in three phases; ``scripts/soak --takeovers`` plays all of them.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import pytest

from tests.integration.support import spec_for
from tests.integration.takeovers import Stage, Takeover
from tests.support.rigging import running

MINERS = ["miner-1", "miner-2"]
CELLS = (("killed", "closing"), ("stopped", "reduced"), ("cut off", "frozen"))


@dataclass(frozen=True)
class Story:
    cells: dict[str, Takeover]
    verified: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    with running(tmp_path_factory.mktemp("takeover") / "run", spec_for(2), miners=2, validators=2) as rig:
        stage = Stage(rig, MINERS)
        stage.begin()
        cells = {fault: stage.play(fault, phase) for fault, phase in CELLS}
        return Story(cells, rig.verify())


@pytest.mark.parametrize("fault", [fault for fault, _ in CELLS])
def test_the_standby_commits_the_round_that_the_leader_left(story: Story, fault: str) -> None:
    cell = story.cells[fault]
    assert cell.committed_round == cell.round
    assert cell.committer != cell.leader
    assert cell.members == set(MINERS)


def test_no_miner_ended(story: Story) -> None:
    assert all(cell.miners_alive for cell in story.cells.values())


def test_the_woken_leader_did_no_harm(story: Story) -> None:
    assert story.verified.returncode == 0, story.verified.stdout + story.verified.stderr
