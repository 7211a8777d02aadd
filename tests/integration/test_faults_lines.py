"""Faulty lines and dishonest miners on real processes: each once, in one story, and nothing is started again.

Miner 2's line is cut, slow, damages bytes, loses replies and objects; its uploads come a round late, and two. Miner 4
lies. The storage is away, and asks for patience. What the protocol prescribes for each stands in the log.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.integration.support import SLOWED, accepted, begun, commits, late, next_plan, rejected, spec_for
from tests.support.rig import Plan, Rig
from tests.support.rigging import running

HONEST = ["miner-1", "miner-2", "miner-3"]
VICTIM, LIAR = "miner-2", "miner-4"
PATIENT_S = 1
TENTH_BPS = 160_000.0
"""A delta takes two seconds and a half: the tenth of what makes it take a quarter of one."""
VERDICTS = {
    "nan": "non_finite",
    "scale": "norm_too_large",
    "flip": "wrong_direction",
    "copy": "duplicate",
    "missing": "too_late",
}
"""The code that rejects each lie."""


@dataclass
class Story:
    """What was found in each chapter."""

    lies: dict[str, Plan] = field(default_factory=dict)
    chapters: dict[str, Plan] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    held: str = ""
    restarts: int = 0
    commits: int = 0
    aborts: list[str] = field(default_factory=list)
    verified: subprocess.CompletedProcess[str] | None = None


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("lines") / "run"
    with running(folder, spec_for(4), miners=4) as rig:
        rig.start_validator()
        for name in HONEST:
            rig.start_miner(name, *SLOWED)
        rig.start_miner(LIAR, *SLOWED, wrong=liar_words(rig))
        begun(rig, [*HONEST, LIAR])
        return Teller(rig).tell()


def liar_words(rig: Rig) -> tuple[str, ...]:
    victims = [str(rig.folder / name) for name in ("miner-1", "miner-3")]
    return (
        "--orders",
        str(rig.folder / "orders"),
        "--bucket-url",
        rig.storage.public_base_url(),
        "--victims",
        *victims,
    )


class Teller:
    """Lives through the story. Miner 4 lies while the lines are hurt: what becomes of both is looked for in the log."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.story = Story()
        self._told_at = 0
        """Committed plans before the present lie was ordered."""

    def tell(self) -> Story:
        rig, story = self.rig, self.story
        chapters: list[tuple[str, str, Callable[[], None]]] = [
            ("nan", "throttled", self.throttled),
            ("scale", "lost replies", self.lost_replies),
            ("flip", "corrupt", self.corrupt),
            ("copy", "missing update", self.missing_update),
            ("average", "cut", self.cut),
            ("missing", "a tenth", self.a_tenth),
            ("twice", "away", self.storage_away),
            ("", "late", self.late),
        ]
        for lie, chapter, live_through in chapters:
            self.order(lie)
            live_through()
            story.chapters.setdefault(chapter, self.back())
            if lie:
                story.lies[lie] = self.judged(lie)
        story.restarts = sum(part.ended() is not None for part in rig.parts.values())
        story.aborts = [entry.reason for entry in rig.entries if entry.kind == "round_aborted"]
        story.verified = rig.verify()
        story.commits = rig.head
        return story

    def order(self, lie: str) -> None:
        self._told_at = len(self.rig.committed())
        (self.rig.folder / "orders").write_text(lie)

    def judged(self, lie: str) -> Plan:
        """The first plan since the order that does with the liar what the protocol prescribes."""
        code = VERDICTS.get(lie)

        def found() -> Plan | None:
            plans = self.rig.committed()[self._told_at :]
            good = (plan for plan in plans if (rejected(plan, LIAR, code) if code else accepted(plan, LIAR)))
            return next(good, None)

        return self.rig.until(found, f"what becomes of the lie {lie}")

    def back(self) -> Plan:
        """The next plan that merges work of the victim."""
        return next_plan(self.rig, lambda plan: accepted(plan, VICTIM), "the victim in a plan")

    # The chapters.

    def throttled(self) -> None:
        """Everybody's storage asks for patience, with both of the usual codes."""
        lines = [self.rig.lines[name].storage for name in ("validator", VICTIM, "miner-3")]
        for line in lines:
            line.answer(503, 4, retry_after_s=PATIENT_S)
            line.answer(429, 4, retry_after_s=PATIENT_S)
        self.rig.until(lambda: all(line.counters.answered == 8 for line in lines), "all refusals of the storage")

    def lost_replies(self) -> None:
        """Requests reach the other side and their answers are lost: of manifests, completions, puts, log entries."""
        line, leader = self.rig.lines[VICTIM], self.rig.lines["validator"].storage
        proxies = (line.validator, line.storage, leader)
        for proxy in proxies:
            proxy.lose_replies(4)
        self.rig.until(lambda: all(proxy.counters.lost_replies == 4 for proxy in proxies), "all replies lost")

    def corrupt(self) -> None:
        """A byte of a delta on its way up, and one of what is read, are damaged."""
        storage = self.rig.lines[VICTIM].storage
        storage.corrupt_uploads(20_000)
        storage.corrupt_replies(1_000)
        storage.cut_all()
        self.rig.until(lambda: storage.counters.flipped_bytes == 2, "two damaged bytes")

    def missing_update(self) -> None:
        """The victim asks for objects of the rounds, updates among them, and for a while there are none."""
        storage = self.rig.lines[VICTIM].storage
        storage.answer(404, 3, method="GET", path=f"/{self.rig.storage.bucket}/runs/{self.rig.spec.run}/rounds/")
        before = storage.counters.answered
        self.rig.until(lambda: storage.counters.answered == before + 3, "three objects not found")

    def cut(self) -> None:
        """The victim is off the network until it counts as gone, and a round went by without it."""
        rig, line = self.rig, self.rig.lines[VICTIM]
        line.cut()
        rig.until(lambda: (seen := rig.miner(VICTIM)) is not None and not seen.live, "the victim counting as gone")
        self.story.chapters["without"] = next_plan(rig, lambda plan: not accepted(plan, VICTIM), "a plan without it")
        line.cut(False)

    def a_tenth(self) -> None:
        """The victim's link has a tenth of its rate, both ways: its work still comes in, in time or late."""
        link = self.rig.lines[VICTIM].link
        link.up.rate_bps = link.down.rate_bps = TENTH_BPS
        for _ in range(2):
            self.story.chapters["a tenth"] = self.back()
        link.up.rate_bps = link.down.rate_bps = None

    def storage_away(self) -> None:
        """Nobody reaches the storage until the leader says that it holds; nothing is written meanwhile."""
        rig = self.rig
        for line in rig.lines.values():
            line.storage.refuse()
            line.storage.cut_all()
        holding = rig.until(
            lambda: rig.status.waiting_for if rig.status and rig.status.waiting_for.startswith("holding") else None,
            "the leader holding",
        )
        self.story.held = holding
        for line in rig.lines.values():
            line.storage.refuse(False)
        commits(rig)

    def late(self) -> None:
        """No put of the victim goes through: until two plans have named it, and then, again, until one has.

        A delta that is let through between two plans is taken by the second one. That plan may be there before it; then
        the same is tried again.
        """
        self.story.chapters["two late"] = self.held_back(lambda plan: rejected(plan, VICTIM, "too_late"))
        found = False
        while not found:
            self.held_back(lambda plan: any(member.decision == "deferred" for member in plan.of(VICTIM)))
            plan = next_plan(self.rig, lambda plan: bool(plan.of(VICTIM)), "the plan after the late one")
            found = late(plan, VICTIM)
        self.story.chapters["one late"] = plan

    def held_back(self, wanted: Callable[[Plan], bool]) -> Plan:
        storage = self.rig.lines[VICTIM].storage
        storage.answer(503, None, method="PUT")
        plan = next_plan(self.rig, wanted, "what becomes of puts that are held back")
        storage.stop_answering()
        return plan


@pytest.mark.parametrize("lie", sorted(VERDICTS))
def test_a_lie_is_rejected_with_its_code(story: Story, lie: str) -> None:
    (member,) = [one for one in story.lies[lie].of(LIAR) if one.decision == "rejected"]
    assert (member.code, member.weight) == (VERDICTS[lie], 0.0)
    assert all(accepted(story.lies[lie], name) for name in ("miner-1", "miner-3"))


def test_the_average_of_others_gets_no_more_than_a_miners_share(story: Story) -> None:
    """It is no copy of any of them and does no harm: what it is worth is for the scores to say."""
    plan = story.lies["average"]
    total = sum(member.weight for members in plan.members.values() for member in members)
    assert sum(member.weight for member in plan.of(LIAR)) <= total / 2


def test_who_says_everything_twice_is_heard_once(story: Story) -> None:
    accepted_ones = [one for one in story.lies["twice"].of(LIAR) if one.decision == "accepted"]
    assert len({one.base_revision for one in accepted_ones}) == len(accepted_ones) > 0


@pytest.mark.parametrize(
    "chapter", ["throttled", "lost replies", "corrupt", "missing update", "cut", "a tenth", "away"]
)
def test_the_victim_of_a_line_is_merged_again(story: Story, chapter: str) -> None:
    assert accepted(story.chapters[chapter], VICTIM)


def test_a_round_goes_by_without_who_is_cut_off(story: Story) -> None:
    assert accepted(story.chapters["without"], "miner-1")


def test_a_storage_that_is_away_is_waited_for(story: Story) -> None:
    assert story.held.startswith("holding")


def test_what_comes_a_round_late_is_merged_with_less_weight(story: Story) -> None:
    base = story.chapters["one late"].frozen.base_revision
    (member,) = [one for one in story.chapters["one late"].of(VICTIM) if one.base_revision < base]
    assert member.decision == "accepted"
    assert 0 < member.weight < member.tokens


def test_what_comes_two_rounds_late_is_not_merged_and_not_judged(story: Story) -> None:
    (member,) = [one for one in story.chapters["two late"].of(VICTIM) if one.code == "too_late"]
    assert member.weight == 0.0


def test_no_process_was_started_again_and_no_round_aborted(story: Story) -> None:
    assert story.restarts == 0
    assert story.aborts == []


def test_the_run_verifies(story: Story) -> None:
    assert story.verified is not None
    assert story.verified.returncode == 0, story.verified.stdout + story.verified.stderr
    assert f"head is revision {story.commits}" in story.verified.stdout
