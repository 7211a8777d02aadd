"""Machines that join, die, stop and leave, on real processes: each once, in one story, and the run goes on.

A miner dies before, during and after an upload (SIGKILL), one is stopped and goes on (SIGSTOP), one is told to leave
(SIGTERM), one has a clock that is five minutes off. What the protocol prescribes for each stands in the log. Nobody
starts anything again but the dead miner, whose disk it goes on from.
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass

import pytest

from common import keys
from common.units import RoundId
from tests.integration.support import SLOWED, accepted, begun, next_plan, spec_for
from tests.support.rig import Plan, Rig
from tests.support.rigging import running

ALL = ["miner-1", "miner-2", "miner-3"]
STOPPED, CROOKED_CLOCK, MORTAL = "miner-2", "miner-3", "miner-4"
WRONG_CLOCK = ("--clock-s", "300")
SLOW_BPS = 80_000.0
"""A delta takes five seconds then."""


@dataclass(frozen=True)
class Story:
    """The plans that tell how each chapter ended."""

    joined: Plan
    died_during: Plan
    back: Plan
    """The first plan with the dead one again."""
    died_before: Plan
    without_the_stopped: Plan
    stopped_again: Plan
    died_after: Plan
    died_after_in: int
    """The round that was open then."""
    left_in: int
    left_with: int | None
    """Exit code."""
    left: Plan
    commits: int
    aborts: list[str]
    voids: int
    damaged: list[str]
    """States of miners that were set aside."""
    verified: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    with running(tmp_path_factory.mktemp("machines") / "run", spec_for(3), miners=4) as rig:
        rig.start_validator()
        for name in ALL:
            rig.start_miner(name, *SLOWED, wrong=WRONG_CLOCK if name == CROOKED_CLOCK else ())
        begun(rig, ALL)
        return live_through(rig)


def live_through(rig: Rig) -> Story:
    rig.start_miner(MORTAL, *SLOWED)
    joined = next_plan(rig, lambda plan: accepted(plan, MORTAL), "the joiner in a plan")
    died_during = die_during_upload(rig, MORTAL)
    back = rise(rig, MORTAL)
    died_before = die_before_upload(rig, MORTAL)
    without, again = stop_and_go_on(rig, STOPPED)
    died_after_in, died_after = die_after_upload(rig, STOPPED)
    left_in, left_with = leave(rig, CROOKED_CLOCK)
    left = plan_of(rig, left_in)
    verified = rig.verify()
    return Story(
        joined=joined,
        died_during=died_during,
        back=back,
        died_before=died_before,
        without_the_stopped=without,
        stopped_again=again,
        died_after=died_after,
        died_after_in=died_after_in,
        left_in=left_in,
        left_with=left_with,
        left=left,
        commits=rig.head,
        aborts=[entry.reason for entry in rig.entries if entry.kind == "round_aborted"],
        voids=rig.voids,
        damaged=[str(path) for path in rig.folder.glob("**/*.bad")],
        verified=verified,
    )


def plan_of(rig: Rig, round_id: int) -> Plan:
    """The committed plan of a round."""
    return rig.until(
        lambda: next((plan for plan in rig.committed() if plan.frozen.round == round_id), None),
        f"the commit of round {round_id}",
    )


def rise(rig: Rig, name: str) -> Plan:
    """Start a dead miner again; the first plan that merges work of it on a base that it did not die on."""
    head = rig.head
    rig.start_miner(name, *SLOWED)
    return next_plan(
        rig,
        lambda plan: any(one.decision == "accepted" and one.base_revision >= head for one in plan.of(name)),
        "the dead one back in a plan",
    )


def at_work(rig: Rig, name: str) -> int | None:
    """The open round, once this miner trains for it and before it has delivered."""
    seen, view = rig.miner(name), rig.status.round if rig.status else None
    if seen is None or view is None or view.round != rig.open_round or view.phase not in ("open", "closing"):
        return None
    return rig.open_round if seen.live and seen.round_tokens > 0 and not seen.delivered else None


def die_during_upload(rig: Rig, name: str) -> Plan:
    """A delta is receipted, and on its way over a slow link; the next plan that names the dead."""
    line = rig.lines[name]
    rig.until(lambda: (seen := rig.miner(name)) is not None and seen.delivered, "all of the mortal's work delivered")
    line.link.up.rate_bps, begun_before = SLOW_BPS, line.storage.counters.uploads
    rig.until(lambda: line.storage.counters.uploads > begun_before, "the mortal's upload under way")
    rig.parts[name].kill()
    line.link.up.rate_bps = None
    return next_plan(rig, lambda plan: bool(plan.of(name)), "the dead one in a plan")


def die_before_upload(rig: Rig, name: str) -> Plan:
    """It trains, and nothing of it was announced; the plan of the round of its death."""
    door = rig.lines[name].validator
    door.answer(503, None, method="POST", path="/v1/submissions")
    next_plan(rig, lambda plan: not plan.of(name), "a plan without the silenced one")
    round_id = rig.until(lambda: at_work(rig, name), "the silenced one at work")
    rig.parts[name].kill()
    return plan_of(rig, round_id)


def die_after_upload(rig: Rig, name: str) -> tuple[int, Plan]:
    """A drip of it has arrived, and its final has not; the round of its death, and its plan."""

    round_id = rig.until(lambda: dripped(rig, name), "a drip of the mortal")
    rig.parts[name].kill()
    return round_id, plan_of(rig, round_id)


def dripped(rig: Rig, name: str) -> int | None:
    """The open round, once a drip of this miner has arrived and before its final has."""
    round_id = at_work(rig, name)
    return round_id if round_id is not None and manifests(rig, round_id, name) else None


def manifests(rig: Rig, round_id: int, name: str) -> list[str]:
    """Of what this miner has delivered for a round."""
    prefix = f"{keys.round_prefix(rig.spec.run, RoundId(round_id))}0/{rig.hotkey(name)}/"
    return [info.key for info in rig.store.list(prefix) if info.key.endswith(".json")]


def stop_and_go_on(rig: Rig, name: str) -> tuple[Plan, Plan]:
    """SIGSTOP until it counts as gone and a round went by without it; then SIGCONT."""
    rig.parts[name].signal(signal.SIGSTOP)
    rig.until(lambda: (seen := rig.miner(name)) is not None and not seen.live, "the stopped one counting as gone")
    without = next_plan(rig, lambda plan: not accepted(plan, name), "a plan without the stopped one")
    rig.parts[name].signal(signal.SIGCONT)
    return without, next_plan(rig, lambda plan: accepted(plan, name), "the stopped one back in a plan")


def leave(rig: Rig, name: str) -> tuple[int, int | None]:
    """SIGTERM in an open round that the miner knows: the round, and the exit code."""
    round_id = rig.until(lambda: dripped(rig, name), f"{name} at work")
    rig.parts[name].signal(signal.SIGTERM)
    rig.until(lambda: rig.parts[name].ended() is not None, f"{name} gone")
    return round_id, rig.parts[name].ended()


def test_a_joiner_is_merged_at_once_under_the_newcomers_cap(story: Story) -> None:
    (member,) = story.joined.of(MORTAL)
    assert "never merged before" in member.reason
    total = sum(one.weight for ones in story.joined.members.values() for one in ones)
    assert 0 < member.weight <= total / 2


def test_who_dies_before_anything_was_announced_is_not_in_the_plan(story: Story) -> None:
    assert story.died_before.of(MORTAL) == []
    assert all(accepted(story.died_before, name) for name in ("miner-1", "miner-2"))


def test_who_dies_during_an_upload_is_deferred_and_not_refused(story: Story) -> None:
    """Unless an earlier drip of it had arrived, which is merged then."""
    base = story.died_during.frozen.base_revision
    (member,) = [one for one in story.died_during.of(MORTAL) if one.base_revision == base]
    assert member.decision == "deferred" or (member.decision == "accepted" and member.tokens > 0)


def test_the_drip_of_who_dies_after_it_is_merged_with_the_tokens_that_it_covers(story: Story) -> None:
    (member,) = [one for one in story.died_after.of(STOPPED) if one.round == story.died_after_in]
    assert member.decision == "accepted"
    assert member.tokens > 0


def test_the_dead_come_back_from_their_disks(story: Story) -> None:
    assert accepted(story.back, MORTAL)
    assert story.damaged == []


def test_who_is_stopped_is_missed_and_is_back_by_itself(story: Story) -> None:
    """What it had handed in before it was stopped may have been merged; a later round went by without it."""
    assert accepted(story.without_the_stopped, "miner-1")
    assert accepted(story.stopped_again, STOPPED)


def test_who_is_told_to_leave_hands_in_what_it_has(story: Story) -> None:
    assert story.left_with == 0
    (member,) = [one for one in story.left.of(CROOKED_CLOCK) if one.round == story.left_in]
    assert (member.decision, member.code) == ("accepted", "")
    assert member.tokens > 0


def test_a_clock_that_is_five_minutes_off_does_no_harm(story: Story) -> None:
    """Who has it was merged in every chapter."""
    assert all(accepted(plan, CROOKED_CLOCK) for plan in (story.joined, story.back, story.left))


def test_no_round_was_aborted_and_nothing_is_void(story: Story) -> None:
    assert story.aborts == []
    assert story.voids == 0


def test_the_run_verifies(story: Story) -> None:
    assert story.verified.returncode == 0, story.verified.stdout + story.verified.stderr
    assert f"head is revision {story.commits}" in story.verified.stdout
