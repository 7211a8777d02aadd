"""What a commit may say that it took from miners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.canonical import Json
from common.errors import Rejected
from common.reductions import Reduced, TakenParts, UsedWord
from common.runlog.reduced import check_reduced
from common.runlog.replay import apply
from common.spec import ReduceSpec
from common.typed import from_json, to_json
from common.units import Hotkey, Sha256, ShardId
from tests.runlog.support import ALICE, BOB, MINERS, after, committed, frozen, led, opened, slot, small_spec

WORD = UsedWord(min(miner.hotkey for miner in MINERS), Sha256("a" * 64))
GOOD = Reduced((WORD,), (TakenParts(ShardId(0), (0, 2)),))
PAIRS = ReduceSpec("butterfly", 4, 2, 0)


def test_a_leader_that_reduces_alone_takes_nothing_from_miners() -> None:
    state = after(led(), opened, frozen)
    step = apply(state, slot(state, replace(committed(state), reduced=GOOD), ALICE))
    assert step.void is not None
    assert (step.void.code, step.state.head) == ("bad_revision", state.head)


def test_what_may_be_named() -> None:
    plan = frozen(after(led(), opened))
    spec = replace(small_spec(), reduce=PAIRS)
    assert check_reduced(spec, plan, GOOD) == ""
    assert "only the first plan" in check_reduced(spec, replace(plan, attempt=1), GOOD)
    stranger = replace(GOOD, words=(UsedWord(BOB.hotkey, Sha256("a" * 64)),))
    assert "does not accept" in check_reduced(spec, plan, stranger)
    for part in (TakenParts(ShardId(0), (4,)), TakenParts(ShardId(1), (0,)), TakenParts(ShardId(0), (-1, 0))):
        assert "does not have" in check_reduced(spec, plan, replace(GOOD, parts=(part,)))
    drawn = replace(spec, reduce=replace(PAIRS, audits=2))
    assert check_reduced(drawn, plan, GOOD) == ""
    more = replace(GOOD, parts=(TakenParts(ShardId(0), (0, 1, 2)),))
    assert "are drawn to be computed" in check_reduced(drawn, plan, more)


@pytest.mark.parametrize(
    "change",
    [
        {"words": ()},
        {"parts": ()},
        {"parts": (TakenParts(ShardId(0), ()),)},
        {"parts": (TakenParts(ShardId(0), (2, 0)),)},
        {"parts": (TakenParts(ShardId(0), (1, 1)),)},
        {"words": (WORD, WORD)},
        {"words": (UsedWord(Hotkey("b"), WORD.sha256), UsedWord(Hotkey("a"), WORD.sha256))},
    ],
)
def test_names_are_ordered_and_complete(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"words": GOOD.words, "parts": GOOD.parts}
    table: Json = {key: to_json(value) for key, value in (fields | change).items()}
    with pytest.raises(Rejected):
        from_json(Reduced, table, "bad_entry")
    assert from_json(Reduced, to_json(GOOD), "bad_entry") == GOOD
