"""The time of work that a claim is measured by: never less than an honest miner worked, and little more."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from common.units import RoundId, Sha256, sha256_hex
from common.wire import Counters, Heartbeat, Phase
from validator.round.tokens import Seen
from validator.worktime import BEATS, UNKNOWN, WorkTime

ROUND = RoundId(4)


def delta(name: str) -> Sha256:
    return sha256_hex(name.encode())


def beat(
    total: int,
    tokens: int | None = None,
    *,
    ahead: int = 0,
    round_id: int | None = 4,
    phase: Phase = Phase.TRAINING,
    session: str = "ab" * 8,
    online_s: float = 1.0,
) -> Heartbeat:
    return Heartbeat(
        session=session,
        seq=0,
        phase=phase,
        round=round_id,
        revision=None,
        weights_sha256=None,
        round_tokens=total if tokens is None else tokens,
        round_steps=0,
        ahead_tokens=ahead,
        tokens_per_s=1.0,
        loss=None,
        counters=Counters(tokens=total, training_s=1.0, online_s=online_s),
        upload=None,
        note="",
    )


def heard(*beats: tuple[float, Heartbeat], overlap: bool = True) -> WorkTime:
    work, before, before_s = WorkTime(), None, 0.0
    for now_s, one in beats:
        work.hear(one, before, before_s, now_s, overlap)
        before, before_s = one, now_s
    return work


def test_work_is_timed_from_the_first_heartbeat_of_one_that_had_not_begun() -> None:
    work = heard((1.0, beat(0)), (3.0, beat(20)), (6.0, beat(50)))
    assert work.seconds == 5.0
    work.mark(ROUND, delta("x"), 50, 6.5)
    assert work.seen(delta("x")) == Seen(5.5, True, 5.5), "until the manifest came"
    assert work.seen(delta("y")) == UNKNOWN


def test_one_found_at_work_is_unknown_until_a_plan_names_what_we_saw_it_send() -> None:
    work = heard((1.0, beat(70)), (3.0, beat(90)))
    assert work.seconds is None
    work.mark(ROUND, delta("x"), 90, 3.0)
    assert work.seen(delta("x")) == Seen(None, False, worked_s=2.0), "so long we saw it at work"
    assert work.seen(delta("y")) == UNKNOWN
    work.settle(delta("x"))
    work.hear(beat(120, 0, ahead=30), beat(90), 3.0, 8.0, True)
    assert work.seconds == 7.0, "from the heartbeat before the mark: never too short"


def test_the_next_work_begins_at_the_mark_that_the_plan_names() -> None:
    work = heard((0.0, beat(0)), (10.0, beat(100)))
    work.mark(ROUND, delta("drip"), 100, 10.0)
    work.hear(beat(160), beat(100), 10.0, 16.0, True)
    work.mark(ROUND, delta("final"), 160, 16.0)
    assert work.seen(delta("drip")) == Seen(10.0, True, 10.0)
    assert work.seen(delta("final")) == Seen(16.0, True, 16.0), "cumulative"
    work.settle(delta("drip"))
    assert work.seen(delta("final")) == Seen(16.0, True, 6.0), "the drip was made after the heartbeat at 0"
    work.hear(beat(200, 0, ahead=40), beat(160), 16.0, 20.0, True)
    work.settle(delta("final"))
    assert work.seconds == 10.0, "the final was made after the heartbeat at 10"


def test_what_no_plan_names_goes_on_counting() -> None:
    work = heard((0.0, beat(0)), (10.0, beat(100)))
    work.mark(ROUND, delta("x"), 100, 10.0)
    work.hear(beat(150), beat(100), 10.0, 15.0, True)
    assert work.seconds == 15.0


def test_after_a_takeover_a_plan_that_names_what_we_never_saw_cuts_nobody() -> None:
    work = heard((0.0, beat(0)), (10.0, beat(100)))
    work.mark(ROUND, delta("after"), 100, 10.0)
    work.settle(delta("before"))
    assert work.seconds is None
    work.settle(delta("after"))
    assert work.seconds is not None


def test_rest_is_no_work_but_a_step_longer_than_a_heartbeat_is() -> None:
    rested = heard((0.0, beat(0)), (2.0, beat(20)), (8.0, beat(20, phase=Phase.WAITING)), (10.0, beat(40)))
    assert rested.seconds == 4.0
    slow = heard((0.0, beat(0)), (2.0, beat(0)), (4.0, beat(0)), (6.0, beat(500)))
    assert slow.seconds == 6.0


def test_sending_is_work_only_where_training_goes_on_meanwhile() -> None:
    beats = ((0.0, beat(0)), (2.0, beat(20)), (8.0, beat(20, phase=Phase.UPLOADING)), (10.0, beat(40)))
    assert heard(*beats, overlap=False).seconds == 4.0
    assert heard(*beats, overlap=True).seconds == 10.0


def test_a_new_process_goes_on_where_the_old_one_was_and_its_absence_is_no_work() -> None:
    again = beat(30, session="cd" * 8, online_s=5.0)
    work = heard((0.0, beat(0)), (10.0, beat(100)), (100.0, again))
    assert work.seconds == 15.0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0, 1), st.booleans()), min_size=1, max_size=BEATS * 3))
def test_an_honest_miner_is_never_seen_to_have_worked_less_than_it_did(looks: list[tuple[float, float, bool]]) -> None:
    """It trains without a pause, a token a millisecond; between two heartbeats it may send what it has, and plans name
    some of that."""
    work, before = WorkTime(), beat(0)
    work.hear(before, None, 0.0, 0.0, True)
    now_s, settled_s = 0.0, 0.0
    for number, (passed_s, part, named) in enumerate(looks):
        made_s, told = now_s + part * passed_s, delta(str(number))
        if part > 0.5:
            work.mark(ROUND, told, int((made_s - settled_s) * 1000), made_s)
            seen = work.seen(told)
            assert seen.seconds is not None
            assert seen.seconds >= made_s - settled_s - 1e-6
            if named:
                work.settle(told)
                settled_s = made_s
        here = beat(int((now_s + passed_s) * 1000), int((now_s + passed_s - settled_s) * 1000))
        work.hear(here, before, now_s, now_s + passed_s, True)
        before, now_s = here, now_s + passed_s
        assert work.seconds is not None
        assert work.seconds >= now_s - settled_s - 1e-6
