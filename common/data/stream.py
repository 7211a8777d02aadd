"""Which samples a miner trains on, and which a validator scores on: pure functions of published facts.

A miner's samples are an endless stream fixed by (weights hash of the base revision, round, hotkey): sample i starts
where SHA-256 of those facts and i says. So nobody chooses its own data, no two miners share a stream, and a validator
can draw any part of anyone's stream without the parts before it. Only integers and SHA-256 are used, so every
platform draws the same samples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from common.data.dataset import Dataset, Samples, TokenSequence
from common.errors import OperatorError
from common.units import Hotkey, RoundId, Sha256


@dataclass(frozen=True)
class SampleStream:
    """The assigned data of one miner in one round; a sample is int64 [seq_len + 1], inputs and shifted targets."""

    dataset: Dataset
    base_hash: Sha256
    round_id: RoundId
    hotkey: Hotkey
    seq_len: int

    def __post_init__(self) -> None:
        _require_tokens(self.dataset.train, self.seq_len, "train")

    def sample(self, index: int) -> Samples:
        """Sample ``index`` ≥ 0."""
        facts = f"brigade/1/stream\n{self.dataset.id}\n{self.base_hash}\n{self.round_id}\n{self.hotkey}"
        return _draw(self.dataset.train, facts, index, self.seq_len)

    def batch(self, start: int, count: int) -> Samples:
        """Samples ``start`` to ``start + count``, int64 [count, seq_len + 1]."""
        return _stack([self.sample(index) for index in range(start, start + count)], self.seq_len)


def unseen_batch(dataset: Dataset, seed: Sha256, count: int, seq_len: int) -> Samples:
    """Training samples unknown before ``seed``, the hash of the frozen plan, was: int64 [count, seq_len + 1]."""
    _require_tokens(dataset.train, seq_len, "train")
    facts = f"brigade/1/unseen\n{dataset.id}\n{seed}"
    return _stack([_draw(dataset.train, facts, index, seq_len) for index in range(count)], seq_len)


def heldout_batches(dataset: Dataset, count: int, seq_len: int) -> Samples:
    """``count`` samples spread evenly over the held-out text, always the same: int64 [count, seq_len + 1]."""
    _require_tokens(dataset.heldout, seq_len, "held-out")
    last = dataset.heldout.total - (seq_len + 1)
    starts = [index * last // max(1, count - 1) for index in range(count)]
    return _stack([dataset.heldout.read(start, seq_len + 1) for start in starts], seq_len)


def _draw(tokens: TokenSequence, facts: str, index: int, seq_len: int) -> Samples:
    """A window whose start is uniform up to a bias of 2^-128 × the number of starts."""
    digest = hashlib.sha256(f"{facts}\n{index}".encode("ascii")).digest()
    start = int.from_bytes(digest[:16], "big") % (tokens.total - seq_len)
    return tokens.read(start, seq_len + 1)


def _stack(samples: list[Samples], seq_len: int) -> Samples:
    """[count, seq_len + 1], also where count is 0."""
    return np.array(samples, dtype=np.int64).reshape(len(samples), seq_len + 1)


def _require_tokens(tokens: TokenSequence, seq_len: int, name: str) -> None:
    if tokens.total < seq_len + 1:
        raise OperatorError(
            f"the dataset has {tokens.total} {name} tokens, fewer than a sequence of {seq_len} needs: give it more text"
        )
