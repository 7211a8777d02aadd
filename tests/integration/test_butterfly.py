"""The butterfly on real processes: miners reduce, one lies, two lose their network, the leader dies in the middle."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from common import keys
from common.defaults import BUTTERFLY
from common.reports import Report
from common.runlog.entries import RevisionCommitted
from common.units import Hotkey, RoundId
from tests.integration.support import SLOWED, accepted, begun, commits, spec_for
from tests.support.rig import Plan, Rig
from tests.support.rigging import running
from validator.scoring.reports import read_reports

MINERS = ["miner-1", "miner-2", "miner-3", "miner-4"]
FIRST, SECOND = "validator", "validator-2"


@dataclass(frozen=True)
class Story:
    """What was found in each chapter."""

    honest: RevisionCommitted
    lie: str
    """What a report says of the liar."""
    cut_merged: set[str]
    left_round: RoundId
    """The round in which the leader died."""
    left_commit: RevisionCommitted
    left_committer: Hotkey
    second: Hotkey
    convicted: list[str]
    pids_kept: bool
    verified: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("butterfly") / "run"
    with running(folder, spec_for(len(MINERS), reduce=BUTTERFLY), len(MINERS), validators=2) as rig:
        orders = rig.folder / "orders"
        rig.start_validator(name=FIRST)
        for name in MINERS[:-1]:
            rig.start_miner(name, *SLOWED)
        rig.start_miner(MINERS[-1], *SLOWED, wrong=("--orders", str(orders)))
        rig.until(lambda: rig.status is not None and rig.status.leading, "the first validator leads")
        rig.start_validator(name=SECOND)
        begun(rig, MINERS)
        pids = {name: rig.parts[name].process.pid for name in MINERS}
        honest = rig.until(lambda: newest(rig, lambda commit: commit.reduced is not None), "means taken from miners")

        orders.write_text("mean")
        lie = rig.until(lambda: lie_of(rig, MINERS[-1]), "a report that names the liar")
        orders.write_text("")

        cut_round = held_back(rig, MINERS[:2])
        for name in MINERS[:2]:
            rig.lines[name].cut()
        rig.until(lambda: committed(rig, cut_round), "the round of those that were cut off")
        for name in MINERS[:2]:
            rig.lines[name].cut(False)
            rig.lines[name].storage.stop_answering()
        cut_merged = {name for name in MINERS if accepted(plan_of(rig, cut_round), name)}
        begun_again = len(rig.committed())
        rig.until(
            lambda: any(all(accepted(plan, name) for name in MINERS) for plan in rig.committed()[begun_again:]),
            "all of them merged again",
        )

        rig.watched = SECOND
        rig.until(lambda: rig.status is not None and not rig.status.leading, "the standby")
        left_round = held_back(rig, MINERS)
        rig.parts[FIRST].kill()
        for name in MINERS:
            rig.lines[name].storage.stop_answering()
        left_commit = rig.until(lambda: committed(rig, left_round), "the round that the leader left")
        commits(rig)
        convicted = list(rig.status.convicted) if rig.status else ["no status"]
        kept = pids == {name: rig.parts[name].process.pid for name in MINERS}
        alive = all(rig.parts[name].ended() is None for name in MINERS)
        signer = next(entry.signer for entry in rig.entries if entry.data is left_commit)
        second = rig.wallets.validators[1].hotkey_ss58
        return Story(
            honest,
            lie,
            cut_merged,
            left_round,
            left_commit,
            signer,
            second,
            convicted,
            kept and alive,
            rig.verify(),
        )


def test_miners_reduce_what_the_leader_commits(story: Story) -> None:
    assert story.honest.reduced is not None
    assert len({word.hotkey for word in story.honest.reduced.words}) >= 2


def test_a_miner_that_hands_in_a_wrong_mean_is_named_with_what_it_did(story: Story) -> None:
    assert "wrong mean of partition" in story.lie


def test_owners_that_lose_their_network_while_they_reduce_cost_nobody_anything(story: Story) -> None:
    """Their own deltas had been handed in, and count."""
    assert story.cut_merged >= set(MINERS[:2])


def test_the_next_leader_finishes_the_round_that_was_being_reduced(story: Story) -> None:
    assert story.left_commit.round == story.left_round
    assert story.left_committer == story.second


def test_no_miner_ended_and_nobody_honest_is_convicted(story: Story) -> None:
    assert story.pids_kept
    assert story.convicted == []


def test_the_run_verifies(story: Story) -> None:
    assert story.verified.returncode == 0, story.verified.stdout + story.verified.stderr


def held_back(rig: Rig, names: list[str]) -> RoundId:
    """A round with a plan, whose means these miners can't put, so that it can't be reduced without the leader."""
    for name in names:
        path = f"/{rig.storage.bucket}/{keys.run_prefix(rig.spec.run)}rounds/"
        rig.lines[name].storage.answer(503, None, method="PUT", path=path, contains="/means/")
    seen = len(rig.plans)
    rig.until(lambda: len(rig.plans) > seen and not rig.plans[-1].committed, "a plan that is being reduced")
    return rig.plans[-1].frozen.round


def newest(rig: Rig, wanted: Callable[[RevisionCommitted], bool]) -> RevisionCommitted | None:
    found = [entry.data for entry in rig.entries if isinstance(entry.data, RevisionCommitted) and wanted(entry.data)]
    return found[-1] if found else None


def committed(rig: Rig, round_id: RoundId) -> RevisionCommitted | None:
    return newest(rig, lambda commit: commit.round == round_id)


def plan_of(rig: Rig, round_id: RoundId) -> Plan:
    return next(plan for plan in reversed(rig.plans) if plan.frozen.round == round_id)


def lie_of(rig: Rig, name: str) -> str:
    reports: tuple[Report, ...] = read_reports(rig.store, rig.spec, rig.wallets.validators[0].hotkey_ss58)
    hotkey = rig.hotkey(name)
    return next((m.lie for report in reports for m in report.members if m.hotkey == hotkey and m.lie), "")
