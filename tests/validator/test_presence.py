"""Whose connection comes and goes: by what arrived, and never by what a leader itself did not hear."""

from __future__ import annotations

import dataclasses

import pytest

from common.units import Hotkey
from tests.support.specs import tiny_spec
from validator.health.breaks import Attempts
from validator.presence import Presence

A, B = Hotkey("a"), Hotkey("b")


class Beats:
    """Heartbeats of two machines, one a second, but where a test says otherwise."""

    def __init__(self) -> None:
        self.presence, self.now_s = Presence(silence_s=5.0, stretch_s=60.0), 1000.0

    def play(self, seconds: int, silent: range = range(0), session: str = "s", leaving: bool = False) -> None:
        """B beats on; A does not in the ``silent`` seconds of these."""
        for second in range(seconds):
            self.now_s += 1.0
            self.presence.heard(B, "b", False, self.now_s)
            if second not in silent:
                self.presence.heard(A, session, leaving, self.now_s)

    def take(self) -> dict[Hotkey, Attempts]:
        return self.presence.take(self.now_s)


def test_every_minute_with_a_silence_and_a_return_fails_once() -> None:
    beats = Beats()
    beats.play(60)
    beats.play(60, silent=range(10, 20))
    beats.play(60, silent=range(5, 12))
    beats.play(61, silent=range(30, 36))
    assert beats.take() == {A: Attempts(4, 3), B: Attempts(4, 0)}
    beats.play(120)
    assert beats.take() == {A: Attempts(2, 0), B: Attempts(2, 0)}


def test_many_breaks_within_a_minute_are_one() -> None:
    beats = Beats()
    beats.play(10)
    for _ in range(4):
        beats.play(10, silent=range(7))
    beats.play(15)
    assert beats.take()[A] == Attempts(1, 1)


def test_some_missed_heartbeats_are_no_break() -> None:
    beats = Beats()
    for _ in range(12):
        beats.play(10, silent=range(4))
    assert beats.take()[A].failed == 0


def test_who_does_not_return_left_and_who_returns_after_the_look_broke() -> None:
    beats = Beats()
    beats.play(61)
    beats.play(60, silent=range(60))
    assert beats.take() == {A: Attempts(1, 0), B: Attempts(2, 0)}
    beats.play(120, silent=range(50))
    assert beats.take()[A] == Attempts(2, 1)


@pytest.mark.parametrize(("session", "leaving"), [("another", False), ("s", True)], ids=["restart", "farewell"])
def test_a_new_process_and_a_return_after_a_farewell_are_no_breaks(session: str, leaving: bool) -> None:
    beats = Beats()
    beats.play(30, leaving=leaving)
    beats.play(60, silent=range(20), session=session)
    assert beats.take()[A].failed == 0


def test_time_that_does_not_count_is_nobodys_silence() -> None:
    beats = Beats()
    beats.play(30)
    beats.now_s += 40.0  # this process slept, and hears the first one before it notices
    beats.play(1)
    beats.presence.clear()
    beats.play(61)
    assert beats.take() == {A: Attempts(1, 0), B: Attempts(1, 0)}


def test_before_a_stretch_is_over_there_is_nothing_to_tell_and_nothing_is_lost() -> None:
    beats = Beats()
    beats.play(20, silent=range(5, 15))
    assert beats.take() == {}
    beats.play(41)
    assert beats.take()[A] == Attempts(1, 1)


def test_a_run_with_rare_heartbeats_calls_no_shorter_silence_a_break() -> None:
    spec = dataclasses.replace(tiny_spec().round, heartbeat_s=20.0, member_timeout_s=60.0)
    presence = Presence.of(spec)
    for number in range(40):
        presence.heard(A, "s", False, 59.0 * number)
    assert presence.take(59.0 * 40)[A].failed == 0


def test_who_has_no_seat_any_more_is_forgotten() -> None:
    beats = Beats()
    beats.play(61)
    beats.presence.forget(lambda hotkey: hotkey != A)
    assert beats.take().keys() == {B}
