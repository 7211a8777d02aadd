"""A round that is held open, heard through heartbeats: rest through it, a late arrival and a stranger gain nothing."""

from __future__ import annotations

import dataclasses

import pytest

from common.units import Hotkey, Revision, RoundId, sha256_hex
from common.wire import Counters, Heartbeat, Phase
from tests.support.specs import tiny_spec
from validator.members import Members
from validator.round import core
from validator.round.facts import Held, RoundState
from validator.round.tokens import UNSUPPORTED, most_tokens, validated_tokens
from validator.submissions import Held as Offered

ROUND, RATE, BEAT_S, HOUR_S, TRAIN_S = RoundId(3), 100.0, 10.0, 3600.0, 120.0
USUAL = tiny_spec()
SPEC = dataclasses.replace(
    USUAL, round=dataclasses.replace(USUAL.round, target_tokens=60_000, train_deadline_s=TRAIN_S)
)
HONEST = [Hotkey(name) for name in ("h1", "h2", "h3", "h4")]
OTHER = Hotkey("other")
HUGE = 10**12
PLANNED = int(TRAIN_S * RATE * UNSUPPORTED)
"""What one with an unknown beginning can count for in a round that nobody held."""
SOME = int(2 * BEAT_S * RATE * UNSUPPORTED)
"""Of two heartbeats: the time is known no finer."""


class Story:
    """One leading process and what it hears; honest miners train all the time."""

    def __init__(self, start_s: float = 1000.0, trained_s: float = 0.0, unheard_s: float = 0.0) -> None:
        """The process begins to lead at ``start_s``, when the honest have worked for ``trained_s``."""
        self.members = Members(timeout_s=30.0)
        self.now_s = self.met_s = start_s
        self.trained_s = trained_s
        self.seq = 0
        self.state: RoundState = core.opened(ROUND, Revision(2), start_s, Held(unheard_s, unheard_s))
        self.members.expect(HONEST, start_s)
        self.members.note_earlier(HONEST)
        self.members.learn(dict.fromkeys(HONEST, RATE))

    def beats(self, for_s: float, phase: Phase | None) -> None:
        """Everybody tells of itself for so long; ``phase`` is the other's, None while it is not there."""
        end_s = self.now_s + for_s
        while True:
            self.seq += 1
            worked_s = self.trained_s + self.now_s - self.met_s
            for hotkey in HONEST:
                self._hear(hotkey, Phase.TRAINING, int(worked_s * RATE))
            if phase is not None:
                self._hear(OTHER, phase, 1 if phase is Phase.WAITING else int(worked_s * RATE) + 1)
            if self.now_s >= end_s:
                return
            self.now_s += BEAT_S

    def _hear(self, hotkey: Hotkey, phase: Phase, tokens: int) -> None:
        counters = Counters(tokens=tokens, training_s=1.0, online_s=1.0)
        told = Heartbeat(
            session="ab" * 8,
            seq=self.seq,
            phase=phase,
            round=ROUND,
            revision=None,
            weights_sha256=None,
            round_tokens=tokens,
            round_steps=0,
            ahead_tokens=0,
            tokens_per_s=RATE,
            loss=None,
            counters=counters,
            upload=None,
            note="",
        )
        self.members.hear(hotkey, told, self.now_s)

    def counted(self, hotkey: Hotkey, claimed: int) -> int:
        """Tokens that count of a claim whose manifest comes now; the round's facts are bounded by the same."""
        delta = sha256_hex(f"{hotkey}{self.now_s}".encode())
        self.members.note_receipt(hotkey, ROUND, delta, claimed, self.now_s)
        terms = self.members.terms(SPEC, self.state, self.now_s)
        seen = self.members.seen(hotkey, delta)
        offered = {hotkey: Offered(True, claimed, True, 0, 0.0)}
        facts = {fact.hotkey: fact.tokens for fact in self.members.facts(ROUND, offered, self.now_s, terms)}
        assert facts[hotkey] <= most_tokens(seen, None, terms)
        return validated_tokens(claimed, seen, None, terms)[0]

    def assert_honest_count_whole(self) -> None:
        claimed = int((self.trained_s + self.now_s - self.met_s) * RATE)
        assert [self.counted(hotkey, claimed) for hotkey in HONEST] == [claimed] * len(HONEST)


def held(story: Story, for_s: float, phase: Phase | None) -> None:
    """The storage is away; heartbeats come as ever."""
    story.beats(for_s, phase)
    story.state = core.delayed(story.state, for_s)


def test_an_hour_of_rest_by_its_own_words_is_no_hour_of_work() -> None:
    story = Story()
    held(story, HOUR_S, Phase.WAITING)
    story.assert_honest_count_whole()
    assert story.counted(OTHER, HUGE) <= PLANNED + SOME


def test_one_that_was_silent_for_the_hour_and_says_so_late_gains_what_it_worked_since() -> None:
    story = Story()
    held(story, HOUR_S, None)
    story.beats(60.0, Phase.TRAINING)
    story.assert_honest_count_whole()
    assert story.counted(OTHER, HUGE) <= PLANNED + int(60.0 * RATE * UNSUPPORTED) + SOME


@pytest.mark.parametrize("part", [0.25, 0.75])
def test_one_that_joined_in_the_middle_counts_from_there(part: float) -> None:
    story = Story()
    story.beats(part * HOUR_S, None)
    story.beats((1 - part) * HOUR_S, Phase.TRAINING)
    story.state = core.delayed(story.state, HOUR_S)
    story.assert_honest_count_whole()
    own = (1 - part) * HOUR_S * RATE
    assert story.counted(OTHER, int(own)) == int(own), "its own work counts whole"
    assert story.counted(OTHER, HUGE) <= PLANNED + int(own * UNSUPPORTED) + SOME


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_takeover_in_the_middle_costs_no_honest_token_and_gives_a_stranger_none(part: float) -> None:
    """Of the hour the new leader heard nobody in the first part; then the storage is away on."""
    unheard_s = part * HOUR_S
    story = Story(50_000.0, trained_s=unheard_s, unheard_s=unheard_s)
    held(story, HOUR_S - unheard_s, Phase.WAITING)
    story.assert_honest_count_whole()
    assert story.counted(OTHER, HUGE) <= PLANNED + SOME


def test_a_member_from_before_that_reaches_the_new_leader_late_counts_whole() -> None:
    story = Story(50_000.0, trained_s=HOUR_S, unheard_s=HOUR_S)
    story.members.note_earlier([OTHER])
    story.beats(60.0, None)
    story.beats(BEAT_S, Phase.TRAINING)
    claimed = int((HOUR_S + 60.0 + BEAT_S) * RATE)
    assert story.counted(OTHER, claimed) == claimed


def test_a_process_that_slept_does_not_make_a_member_of_a_stranger() -> None:
    """After its sleep it takes those that it had heard as live; that says nothing of the time before it led."""
    story = Story(50_000.0, trained_s=HOUR_S, unheard_s=HOUR_S)
    story.beats(60.0, Phase.WAITING)
    story.members.expect([*HONEST, OTHER], story.now_s)
    story.assert_honest_count_whole()
    assert story.counted(OTHER, HUGE) <= PLANNED + SOME
