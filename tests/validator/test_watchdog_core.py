"""The watchdog's pure core: facts in, one sentence for each kind of standstill out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.specs import tiny_spec
from validator.round.deadlines import Deadlines
from validator.watchdog.core import find
from validator.watchdog.facts import Facts, Fault, Following, Limits, Miner, RoundLook, Step

LIMITS = Limits.of(Deadlines.of(tiny_spec()))
MINER = Miner("5Miner00", True, True, "training", 1.0, 1.0)
OPEN = RoundLook(4, "open", 950.0, 1010.0, 999.0, 999.0, 960.0, 100, 10, (MINER,))
WELL = Facts(now_s=1000.0, head=3, committed_s=950.0, round=OPEN)


@pytest.mark.parametrize(
    ("facts", "code", "holds", "said"),
    [
        (replace(WELL, paused="paused since slot 9", paused_s=990.0), "paused", True, "slot 9"),
        (replace(WELL, fault=Fault("refused", "wrong_base", 900.0)), "entry_refused", True, "wrong_base"),
        (replace(WELL, fault=Fault("object", "x.delta", 900.0)), "object_unreadable", True, "x.delta"),
        (replace(WELL, step=Step("a renewal", 900.0, False)), "driver_hangs", True, "a renewal"),
        (
            replace(WELL, round=None, following=Following("5Lead", 2, 900.0, 900.0, "no keys")),
            "no_leader",
            True,
            "no keys",
        ),
        (replace(WELL, round=replace(OPEN, quorum_tokens=10**6)), "no_quorum", False, "5Miner00"),
        (replace(WELL, round=replace(OPEN, moved_s=900.0)), "round_still", False, "5Miner00"),
        (replace(WELL, committed_s=100.0), "no_commit", False, "the last was 3"),
    ],
)
def test_each_kind_says_what_and_why(facts: Facts, code: str, holds: bool, said: str) -> None:
    (stall,) = find(facts, LIMITS)
    assert (stall.code, stall.holds) == (code, holds)
    assert said in stall.text


def test_what_goes_on_is_not_told() -> None:
    assert find(WELL, LIMITS) == ()
