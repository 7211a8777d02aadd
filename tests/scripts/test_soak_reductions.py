"""What a soak counts of the means of miners: from the log's commits and from the events in the leaders' files."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from common import logs
from common.reductions import Reduced, TakenParts, UsedWord
from common.runlog.entries import Entry, RevisionCommitted
from common.spec import ReduceSpec
from common.units import Revision, RoundId, Sha256, ShardId
from scripts.soaking.reductions import NOTHING_TAKEN, Reductions
from tests.support.specs import VALIDATOR, tiny_spec

SPEC = tiny_spec(reduce=ReduceSpec("butterfly", partitions=4, redundancy=2, audits=1))
HASH = Sha256("1" * 64)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    logs._current = None
    logger.remove()
    logging.getLogger().handlers.clear()


def committed(number: int, *taken: int) -> Entry:
    """The commit of a round, which took these partitions from miners."""
    word = UsedWord(VALIDATOR.hotkey, HASH)
    reduced = Reduced((word,), (TakenParts(ShardId(0), taken),)) if taken else None
    data = RevisionCommitted(RoundId(number), Revision(number + 1), Revision(number), 64, (), reduced)
    return Entry(SPEC.run, VALIDATOR.hotkey, 2 * number + 2, HASH, 1, "0", 0, "merged", data, HASH)


ENTRIES = [committed(0), committed(1, 0, 2, 3), committed(2, 1), committed(3)]


def say(folder: Path, name: str, *, taken: int, checked: int, dropped: bool = False) -> None:
    """What a leader of this name writes of a reduction."""
    logs.setup_logging(name, folder, stderr=io.StringIO())
    logger.info("waiting for 8 means of its partitions from miners")
    logger.bind(event="committed", round=1).info("revision 2")
    logger.bind(event="reduced", round=1, taken=taken, checked=checked).info("round 1: {} of 4", taken)
    if dropped:
        logger.bind(event="means_dropped", round=1).warning("it rises: computing again")


def test_what_was_taken_is_counted_by_the_log_and_what_was_checked_by_the_leaders_words(tmp_path: Path) -> None:
    reductions = Reductions(SPEC)
    say(tmp_path, "validator", taken=3, checked=1)
    reductions.gather(tmp_path)
    (tmp_path / "validator.log").rename(tmp_path / "validator.log.1")
    say(tmp_path / "validator-2", "validator", taken=1, checked=2, dropped=True)
    reductions.gather(tmp_path)
    assert reductions.summary(ENTRIES, convictions=0) == {
        "commits_with_means_of_miners": 2,
        "commits_without": 2,
        "partitions_taken": 4,
        "share_of_undrawn_taken": round(4 / 12, 4),
        "drawn_checked": 3,
        "rounds_recomputed_without_means": 1,
        "convictions": 0,
    }


def test_a_run_without_a_commit_has_figures_too() -> None:
    figures = Reductions(SPEC).summary([], convictions=2)
    assert (figures["partitions_taken"], figures["share_of_undrawn_taken"], figures["convictions"]) == (0, 0.0, 2)


@pytest.mark.parametrize("entries", [[], ENTRIES[:1]], ids=["no commit", "a commit without means of miners"])
def test_a_soak_in_which_nothing_is_taken_from_miners_has_failed(entries: list[Entry]) -> None:
    assert Reductions(SPEC).problem(entries) == NOTHING_TAKEN


def test_one_partition_from_miners_is_enough() -> None:
    assert Reductions(SPEC).problem(ENTRIES) == ""


def test_where_the_leader_adds_up_there_is_nothing_to_count_or_to_miss(tmp_path: Path) -> None:
    reductions = Reductions(dataclasses.replace(SPEC, reduce=ReduceSpec("leader", 4, 1, 0)))
    say(tmp_path, "validator", taken=3, checked=1)
    reductions.gather(tmp_path)
    assert reductions.summary(ENTRIES, convictions=0) == {}
    assert reductions.problem(ENTRIES) == ""
