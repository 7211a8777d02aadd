"""Groups of deltas as miners make them, for tests of the gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from common.codec.many import decode_many, encode_many
from common.codec.params import F32, CodecParams
from common.merge.gates import Candidate
from common.merge.group import GroupStats, GroupStatsBuilder
from common.spec import GateSpec
from common.units import Coldkey, Hotkey, Revision

POLICY = GateSpec(
    norm_factor=10.0,
    clip_factor=2.0,
    cosine_floor=-0.02,
    copy_cosine=0.95,
    max_share=0.5,
    newcomer_share=0.2,
    claim_slack=1.1,
    damping_at=0.5,
)
BASE = Revision(7)


def codec(density: int) -> CodecParams:
    return CodecParams("topk", density, 16)


def honest(members: int, count: int, density: int = 64, agreement: float = 0.3, seed: int = 11) -> F32:
    """Deltas ``(members, count)`` with a common signal, through the codec.

    An agreement of .3 gives pairwise cosines of about .05 to .1 at density 64 and .15 at 512.
    """
    common = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    parts = [_decoded(raw, density) for raw in _raw(members, common, agreement, seed)]
    return np.concatenate(parts) if parts else np.zeros((0, count), dtype=np.float32)


def _raw(members: int, common: F32, agreement: float, seed: int) -> Iterator[F32]:
    rng = np.random.default_rng(seed + 1)
    for first in range(0, members, 16):
        own = rng.standard_normal((min(16, members - first), len(common)), dtype=np.float32)
        yield np.float32(1e-3) * (np.float32(agreement**0.5) * common + np.float32((1 - agreement) ** 0.5) * own)


def _decoded(raw: F32, density: int) -> F32:
    return decode_many(encode_many(raw, codec(density)), expect=codec(density), count=raw.shape[1]).values


def candidates(count: int, coldkeys: Sequence[str] | None = None) -> list[Candidate]:
    names = coldkeys or [f"cold{i}" for i in range(count)]
    return [Candidate(Hotkey(f"hot{i}"), Coldkey(names[i]), BASE, 1000, i) for i in range(count)]


def group_stats(deltas: Sequence[F32] | F32, count: int, seed: int = 17) -> GroupStats:
    """The facts on whole deltas of one length."""
    builder = GroupStatsBuilder(len(deltas), count, seed)
    for i, delta in enumerate(deltas):
        builder.add(i, 0, delta[None])
    return builder.finish()
