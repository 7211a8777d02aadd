"""kill -9 of every part of a running subnet, at a random moment: the run goes on by itself and loses nothing.

The moments are drawn from a fixed seed and counted in status events, so they fall anywhere in a round.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common import keys
from common.defaults import DEFAULT_PRESET
from common.model.layout import run_layouts
from common.model.presets import PRESETS
from common.store.port import ObjectStore
from common.store.s3 import S3Store
from tests.support.localrun import LocalRun, brigade, bucket_of, delta_sizes, left_behind
from validator.up.folder import RUN_NAME

VICTIMS = ("validator", "miner-1", "storage", "chain")
MINERS = 2


def log_entries(folder: Path) -> list[dict[str, Any]]:
    done = brigade("run", "log", "--json", "--dir", str(folder))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class Story:
    """What was found after each kill, and at the end."""

    folder: Path
    histories: list[tuple[str, list[dict[str, Any]]]]
    """Who was killed, and the log as it stood after the recovery."""
    final: list[dict[str, Any]]
    head: int
    """The revision that was seen last before the signal."""
    code: int
    """Of an end by one signal."""
    summary: dict[str, Any]
    left: list[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("kills") / "run"
    moments = random.Random(20261201)
    histories = []
    with LocalRun(folder, "--density", "64", miners=MINERS) as run:
        head = run.status(lambda status: status["head_revision"] >= 1)["head_revision"]
        for victim in VICTIMS:
            for _ in range(moments.randrange(1, 6)):
                head = run.status()["head_revision"]
            run.kill(victim)
            run.status(lambda status, head=head: status["head_revision"] >= head + 2)
            histories.append((victim, log_entries(folder)))
        head = run.status(lambda status: sum(miner["live"] for miner in status["miners"]) == MINERS)["head_revision"]
        code = run.stop(signal.SIGINT)
        summary, left = run.events[-1], left_behind(folder)
    return Story(folder, histories, log_entries(folder), head, code, summary, left)


@pytest.fixture(scope="module")
def bucket(story: Story) -> Iterator[S3Store]:
    """The run's, served until its tests are over."""
    with bucket_of(story.folder) as store:
        yield store


def test_no_committed_revision_is_lost_or_changed(story: Story) -> None:
    for victim, entries in story.histories:
        assert story.final[: len(entries)] == entries, victim


def test_no_round_is_aborted_and_no_entry_is_void(story: Story) -> None:
    kinds = [entry["kind"] for entry in story.final]
    assert "round_aborted" not in kinds
    assert "void" not in kinds
    assert kinds.count("leader_changed") == 1 + VICTIMS.count("validator")


def test_the_killed_miner_comes_back_and_takes_part(story: Story) -> None:
    after = next(len(entries) for victim, entries in story.histories if victim == "miner-1")
    plans = [entry for entry in story.final[after:] if entry["kind"] == "round_frozen"]
    assert max(len(plan["data"]["members"]) for plan in plans) == MINERS


def test_one_signal_ends_it_in_order(story: Story) -> None:
    assert story.code == 0
    assert story.left == []
    told = story.summary
    assert told["event"] in ("summary", "no_summary"), "it may have to give up on a bucket or chain that is slow"
    if told["event"] == "summary":
        assert told["rounds_committed"] >= story.head, "what was seen before the signal, and maybe more"


@pytest.mark.usefixtures("bucket")
def test_the_run_verifies_from_its_bucket(story: Story) -> None:
    done = brigade("run", "verify", "--dir", str(story.folder))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_delta_of_64_in_4096_is_190_times_smaller_than_dense_float32(bucket: S3Store) -> None:
    """Measured from the objects in the bucket."""
    dense_bytes = 4 * run_layouts(PRESETS[DEFAULT_PRESET], 1)[0].total
    assert dense_bytes / max(delta_sizes(bucket)) >= 190


def test_one_flipped_byte_anywhere_is_found_and_named(story: Story, bucket: S3Store) -> None:
    """In the real bucket, and put right afterwards."""
    dice = random.Random(20261202)
    key = dice.choice(sorted(info.key for info in bucket.list(keys.run_prefix(RUN_NAME))))
    whole = bucket.get(key, max_bytes=1 << 24).body
    flip(bucket, key, whole, dice)
    try:
        done = brigade("run", "verify", "--dir", str(story.folder))
    finally:
        bucket.put(key, whole)
    assert done.returncode == 1, f"{key}: {done.stdout}"
    assert key in done.stderr


def flip(store: ObjectStore, key: str, whole: bytes, dice: random.Random) -> None:
    body = bytearray(whole)
    body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    store.put(key, bytes(body))
