"""What heartbeats claim, by the receiver's clock: a machine that rests claims no more than it does."""

from __future__ import annotations

import dataclasses

import pytest

from common.records import ObjectRef
from common.runlog.entries import PlanMember
from common.units import Hotkey, Revision, RoundId, ShardId, Uid, sha256_hex
from common.wire import Counters, Heartbeat
from tests.validator.test_members import beat
from validator.health.claims import Said
from validator.hearsay import Hearsay, handed_in
from validator.judgement import Judgement
from validator.members import Members
from validator.round.facts import Verdict

A = Hotkey("a" * 48)
SHOWN = {A: 100.0}


def says(seq: int, tokens: int, training_s: float, tokens_per_s: float, session: str = "ab" * 8) -> Heartbeat:
    counters = Counters(tokens=tokens, training_s=training_s, online_s=float(seq))
    return beat(seq, tokens, session=session).model_copy(update={"counters": counters, "tokens_per_s": tokens_per_s})


def heard(speed: float, share: float, counted: int, session: str = "ab" * 8) -> dict[Hotkey, Said]:
    """Ten seconds between two looks, of which it says to have trained a share."""
    members, hearsay = Members(5.0), Hearsay()
    members.hear(A, says(1, 0, 0.0, 0.0), 0.0)
    members.hear(A, says(2, 100, share, speed), 1.0)
    assert hearsay.take(members, SHOWN) == {}, "there is nothing before it"
    for second in range(2, 12):
        tokens = 100 + counted * (second - 1)
        members.hear(A, says(second + 1, tokens, share * second, speed, session), float(second))
    return hearsay.take(members, SHOWN)


def test_a_claim_is_per_second_of_the_receivers_clock() -> None:
    assert heard(speed=100.0, share=1.0, counted=100) == {A: Said(100.0, 100.0, 100.0)}


def test_a_machine_that_is_held_to_a_speed_claims_no_more_than_it_does() -> None:
    said = heard(speed=400.0, share=0.25, counted=100)[A]
    assert (said.speed, said.counted) == (pytest.approx(100.0), pytest.approx(100.0))


def test_a_boast_is_one_by_whichever_figure_it_is_made() -> None:
    assert heard(speed=1000.0, share=1.0, counted=100)[A].speed == pytest.approx(1000.0)
    assert heard(speed=100.0, share=1.0, counted=1000)[A].counted == pytest.approx(1000.0)


def test_a_new_process_says_nothing_yet_nor_does_time_that_does_not_count() -> None:
    assert heard(100.0, 1.0, 100, session="cd" * 8) == {}
    members, hearsay = Members(5.0), Hearsay()
    members.hear(A, says(1, 100, 1.0, 100.0), 1.0)
    hearsay.take(members, SHOWN)
    hearsay.clear()
    assert hearsay.take(members, SHOWN) == {}


def test_what_was_handed_in_is_as_the_manifests_say_whatever_the_plan_counts_of_it() -> None:
    one = PlanMember(
        shard=ShardId(0),
        hotkey=A,
        round=RoundId(4),
        base_revision=Revision(3),
        uid=Uid(1),
        registered_block=1,
        delta=ObjectRef(sha256_hex(b"delta"), 5),
        manifest_sha256=sha256_hex(b"manifest"),
        tokens_claimed=1000,
        tokens=400,
        decision="accepted",
        code="",
        reason="fine",
        weight=1.0,
        scale=1.0,
    )
    late, refused = dataclasses.replace(one, base_revision=Revision(2)), dataclasses.replace(one, decision="rejected")
    judged = Judgement((one, late, refused), 1.0, Verdict(0, 0, 0, 0), {}, {A: (400, 10.0)})
    assert handed_in(judged, Revision(3)) == {A: 100.0}
