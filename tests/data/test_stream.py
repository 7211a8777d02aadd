"""Sample streams: fixed by published facts, random access, the same on every machine, held-out text apart."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.dataset import Dataset, TokenSequence
from common.data.index import DatasetIndex, TokenFile
from common.data.stream import SampleStream, heldout_batches, unseen_batch
from common.errors import OperatorError
from common.units import Hotkey, RoundId, Sha256

SEQ_LEN = 16
BASE = Sha256("1" * 64)
PINNED_STREAM = [6579, 8747, 3223, 6936]
PINNED_UNSEEN = [5333, 2041, 6856, 1335]


def sequence(*sizes: int, first: int = 0) -> TokenSequence:
    """Files of the given sizes whose tokens count up from ``first``."""
    ends = tuple(accumulate(sizes))
    starts = (0, *ends[:-1])
    return TokenSequence(
        tuple(np.arange(s, e, dtype=np.uint16) + first for s, e in zip(starts, ends, strict=True)), ends
    )


def dataset(train: TokenSequence, heldout: TokenSequence) -> Dataset:
    files = (TokenFile("train", Sha256("a" * 64), 1, 1),)
    return Dataset(Sha256("d" * 64), DatasetIndex(1, "bytes", 256, "u2", files), train, heldout)


DATA = dataset(sequence(5000, 3, 4997), sequence(300, 200, first=20_000))


def stream(base: str = BASE, round_id: int = 3, hotkey: str = "alice", data: Dataset = DATA) -> SampleStream:
    return SampleStream(data, Sha256(base), RoundId(round_id), Hotkey(hotkey), SEQ_LEN)


@given(st.integers(0, 10_000), st.data())
def test_a_read_across_files_is_a_read_of_one_sequence(start: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, DATA.train.total - start))
    assert np.array_equal(DATA.train.read(start, count), np.arange(start, start + count))


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (9_999, 2), (10_001, 0), (5, -1)])
def test_a_read_outside_is_an_error(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="of 10000"):
        DATA.train.read(start, count)


def test_samples_are_windows_of_the_training_text() -> None:
    batch = stream().batch(0, 200)
    assert batch.dtype == np.int64
    assert batch.shape == (200, SEQ_LEN + 1)
    assert (np.diff(batch, axis=1) == 1).all()
    assert 0 <= batch.min() <= batch.max() < 10_000
    assert len(set(batch[:, 0].tolist())) > 190


def test_any_part_can_be_drawn_alone() -> None:
    assert np.array_equal(stream().batch(40, 10), stream().batch(0, 50)[40:])
    assert np.array_equal(stream().sample(10**12), stream().batch(10**12, 1)[0])


def test_no_samples_are_an_empty_batch() -> None:
    for empty in (stream().batch(7, 0), unseen_batch(DATA, BASE, 0, SEQ_LEN), heldout_batches(DATA, 0, SEQ_LEN)):
        assert empty.shape == (0, SEQ_LEN + 1)


def test_every_fact_changes_the_stream() -> None:
    streams = [stream(), stream(base="2" * 64), stream(round_id=4), stream(hotkey="bob")]
    starts = {tuple(s.batch(0, 8)[:, 0].tolist()) for s in streams}
    assert len(starts) == 4


def test_samples_are_pinned() -> None:
    """Miners and validators of one run may have different machines and library versions."""
    assert stream().batch(0, 4)[:, 0].tolist() == PINNED_STREAM
    assert unseen_batch(DATA, BASE, 4, SEQ_LEN)[:, 0].tolist() == PINNED_UNSEEN


def test_unseen_samples_depend_on_the_plan_and_are_nobodys() -> None:
    unseen = unseen_batch(DATA, BASE, 50, SEQ_LEN)
    assert not np.array_equal(unseen, unseen_batch(DATA, Sha256("3" * 64), 50, SEQ_LEN))
    assert np.array_equal(unseen[:20], unseen_batch(DATA, BASE, 20, SEQ_LEN))
    assert not np.array_equal(unseen, stream().batch(0, 50))
    assert unseen.max() < 10_000


def test_the_whole_text_is_reachable() -> None:
    small = dataset(sequence(SEQ_LEN + 3), DATA.heldout)
    assert {int(start) for start in stream(data=small).batch(0, 64)[:, 0]} == {0, 1, 2}


def test_held_out_samples_are_fixed_spread_and_never_trained_on() -> None:
    batch = heldout_batches(DATA, 8, SEQ_LEN)
    assert np.array_equal(batch, heldout_batches(DATA, 8, SEQ_LEN))
    assert batch[0, 0] == 20_000
    assert batch[-1, -1] == 20_499
    assert set(np.diff(batch[:, 0]).tolist()) <= {68, 69, 70}
    assert heldout_batches(DATA, 1, SEQ_LEN).shape == (1, SEQ_LEN + 1)


def test_too_short_text_is_refused() -> None:
    short = dataset(sequence(SEQ_LEN), sequence(SEQ_LEN))
    for draw in (lambda: stream(data=short), lambda: unseen_batch(short, BASE, 1, SEQ_LEN)):
        with pytest.raises(OperatorError, match="train tokens, fewer"):
            draw()
    with pytest.raises(OperatorError, match="held-out tokens, fewer"):
        heldout_batches(short, 1, SEQ_LEN)
