"""The local chain's parts alone: block clock, versioned state, journal, metadata edits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chain.local import journal as journal_module
from common.chain.local.clock import BlockClock
from common.chain.local.journal import BlockRecord, Journal
from common.chain.local.metadata import RuntimeMetadata
from common.chain.local.runtime import ChainRuntime
from common.chain.local.splice import compact, read_compact
from common.chain.local.storage import Overlay, Storage
from common.clock import ManualClock
from common.errors import SetupError

GENESIS_MS = 1_700_000_000_000


# -- clock


def test_blocks_follow_time() -> None:
    clock = ManualClock()
    blocks = BlockClock(GENESIS_MS, 0.25, clock)
    assert blocks.number() == 0
    assert blocks.wait_s(1) == pytest.approx(0.25)
    clock.advance(10.1)
    assert blocks.number() == 40
    assert blocks.wait_s(40) == 0
    assert blocks.timestamp_ms(40) == GENESIS_MS + 10_000


def test_a_restarted_clock_is_where_it_would_have_been() -> None:
    clock = ManualClock()
    clock.advance(100)
    assert BlockClock(GENESIS_MS, 0.5, clock).number() == 200


def test_blocks_never_fall_behind_the_last_durable_one() -> None:
    clock = ManualClock()  # the wall clock was set back to genesis
    blocks = BlockClock(GENESIS_MS, 0.25, clock, floor=1000)
    assert blocks.number() >= 1000
    clock.advance(1)
    assert blocks.number() >= 1004


# -- storage


def test_old_versions_are_read_at_their_block() -> None:
    storage = Storage()
    storage.commit(1, {b"k": b"a"})
    storage.commit(5, {b"k": b"b", b"l": b"c"})
    storage.commit(7, {b"k": None})
    assert [storage.read_at(b"k", block) for block in (0, 1, 4, 5, 6, 7)] == [None, b"a", b"a", b"b", b"b", None]
    assert storage.keys_at(b"", b"", 10, 6) == [b"k", b"l"]
    assert storage.keys_at(b"", b"k", 10, 6) == [b"l"]
    assert storage.keys_at(b"", b"", 10, 7) == [b"l"]


def test_an_overlay_is_dropped_or_merged() -> None:
    storage = Storage()
    storage.commit(1, {b"k": b"a"})
    outer = Overlay(storage)
    inner = Overlay(outer)
    inner.write(b"k", None)
    assert (inner.read(b"k"), outer.read(b"k")) == (None, b"a")
    outer.merge(inner.changes)
    assert outer.read(b"k") is None
    assert storage.read(b"k") == b"a"


# -- journal


def _record(number: int, value: bytes | None = b"v") -> BlockRecord:
    return BlockRecord(number, bytes([number]) * 24, (b"x" * number,), b"\x00", {b"key": value, bytes([number]): b""})


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    records = [_record(n) for n in (0, 3, 9)]
    first = Journal(tmp_path)
    assert first.records == []
    for record in records:
        first.append(record)
    first.close()
    assert Journal(tmp_path).records == records


@pytest.mark.parametrize("cut_bytes", [1, 20, 60])
def test_a_torn_line_is_cut_off(tmp_path: Path, cut_bytes: int) -> None:
    first = Journal(tmp_path)
    for number in (0, 1):
        first.append(_record(number))
    first.close()
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    second = Journal(tmp_path)
    assert second.records == [_record(0)]
    second.append(_record(2))
    second.close()
    assert Journal(tmp_path).records == [_record(0), _record(2)]


def test_damage_inside_is_refused(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    for number in (0, 1):
        first.append(_record(number))
    first.close()
    path = tmp_path / "journal"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(SetupError, match="damaged"):
        Journal(tmp_path)


def test_a_long_journal_is_folded_and_keeps_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal(tmp_path)
    for number in range(4):
        first.append(_record(number, None if number == 3 else b"v"))
    first.close()
    monkeypatch.setattr(journal_module, "FOLD_BYTES", 1)
    folded = Journal(tmp_path)
    assert len(folded.records) == 1
    assert folded.records[0].number == 3
    assert folded.records[0].digest == _record(3).digest
    assert folded.records[0].changes == {bytes([n]): b"" for n in range(4)}
    monkeypatch.undo()
    folded.append(_record(7))
    folded.close()
    assert [record.number for record in Journal(tmp_path).records] == [3, 7]


def test_a_journal_that_becomes_long_while_the_chain_runs_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "FOLD_BYTES", 1_000)
    journal, longest = Journal(tmp_path), 0
    for number in range(50):
        journal.append(_record(number))
        longest = max(longest, (tmp_path / "journal").stat().st_size)
    journal.close()
    assert longest <= 1_000
    again = Journal(tmp_path).records
    assert again[-1].number == 49
    assert {key: value for record in again for key, value in record.changes.items()} == {
        b"key": b"v",
        **{bytes([n]): b"" for n in range(50)},
    }


def test_a_crash_between_snapshot_and_emptying_loses_and_repeats_nothing(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    for number in range(4):
        first.append(_record(number))
    first.close()
    (tmp_path / "snapshot").write_bytes(_record(2).to_line())
    assert [record.number for record in Journal(tmp_path).records] == [2, 3]


# -- metadata


@given(st.integers(0, 2**30 - 1))
def test_compact_integers(value: int) -> None:
    assert read_compact(compact(value), 0) == (value, len(compact(value)))


def test_the_added_storage_entry_and_all_others_are_readable(metadata: RuntimeMetadata) -> None:
    runtime = ChainRuntime(metadata)
    assert runtime.decode_item("SubtensorModule", "SubnetEpochConsensus", None) is False
    assert runtime.decode_item("SubtensorModule", "CommitRevealWeightsEnabled", None) is True
    names = [item["name"] for p in runtime.core.metadata_ir()["pallets"] for item in p["storage"]]
    assert len(names) > 380
    assert "PendingChildKeyCooldown" in names


def test_every_runtime_api_has_a_zero_answer(metadata: RuntimeMetadata) -> None:
    runtime = ChainRuntime(metadata)
    for method in runtime.apis.values():
        runtime.blank(method.output)
