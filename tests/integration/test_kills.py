"""kill -9 of every part of a running subnet, at a random moment: the run goes on by itself and loses nothing.

The moments are drawn from a fixed seed and counted in status events, so they fall anywhere in a round.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from common import keys
from common.defaults import DEFAULT_PRESET
from common.model.layout import run_layouts
from common.model.presets import PRESETS
from common.store.port import ObjectStore
from tests.support.localrun import LocalRun, brigade, bucket_of, delta_sizes
from validator.up.folder import RUN_NAME

VICTIMS = ("validator", "miner-1", "storage", "chain", "validator")
MINERS = 3


def log_entries(folder: Path) -> list[dict[str, Any]]:
    done = brigade("run", "log", "--json", "--dir", str(folder))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run in which every part was killed, and the log as it stood after each kill's recovery."""
    folder = tmp_path_factory.mktemp("kills") / "run"
    moments = random.Random(20261201)
    histories: list[dict[str, Any]] = []
    with LocalRun(folder, "--density", "64", miners=MINERS) as run:
        head = run.status(lambda status: status["head_revision"] >= 1)["head_revision"]
        for victim in VICTIMS:
            for _ in range(moments.randrange(1, 6)):
                head = run.status()["head_revision"]
            run.kill(victim)
            run.status(lambda status, head=head: status["head_revision"] >= head + 2)
            histories.append({"victim": victim, "entries": log_entries(folder)})
        run.status(lambda status: sum(miner["live"] for miner in status["miners"]) == MINERS)
        assert run.stop() == 0
    return folder, histories


def test_no_committed_revision_is_lost_or_changed(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, histories = killed
    final = log_entries(folder)
    for history in histories:
        assert final[: len(history["entries"])] == history["entries"], history["victim"]


def test_no_round_is_aborted_and_no_entry_is_void(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    kinds = [entry["kind"] for entry in log_entries(killed[0])]
    assert "round_aborted" not in kinds
    assert "void" not in kinds
    assert kinds.count("leader_changed") == 1 + VICTIMS.count("validator")


def test_the_killed_miner_comes_back_and_takes_part(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, histories = killed
    after = next(len(history["entries"]) for history in histories if history["victim"] == "miner-1")
    plans = [entry for entry in log_entries(folder)[after:] if entry["kind"] == "round_frozen"]
    assert max(len(plan["data"]["members"]) for plan in plans) == MINERS


def test_the_run_verifies_from_its_bucket(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    done = brigade("run", "verify", "--dir", str(killed[0]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_delta_of_64_in_4096_is_190_times_smaller_than_dense_float32(
    killed: tuple[Path, list[dict[str, Any]]],
) -> None:
    """Measured from the objects in the bucket."""
    dense_bytes = 4 * run_layouts(PRESETS[DEFAULT_PRESET], 1)[0].total
    with bucket_of(killed[0]) as store:
        assert dense_bytes / max(delta_sizes(store)) >= 190


def test_one_flipped_byte_anywhere_is_found_and_named(killed: tuple[Path, list[dict[str, Any]]]) -> None:
    """In the real bucket, and put right afterwards."""
    dice = random.Random(20261202)
    with bucket_of(killed[0]) as store:
        key = dice.choice(sorted(info.key for info in store.list(keys.run_prefix(RUN_NAME))))
        whole = store.get(key, max_bytes=1 << 24).body
        flip(store, key, whole, dice)
        try:
            done = brigade("run", "verify", "--dir", str(killed[0]))
        finally:
            store.put(key, whole)
    assert done.returncode == 1, f"{key}: {done.stdout}"
    assert key in done.stderr


def flip(store: ObjectStore, key: str, whole: bytes, dice: random.Random) -> None:
    body = bytearray(whole)
    body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    store.put(key, bytes(body))
