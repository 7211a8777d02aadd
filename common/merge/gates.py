"""Which of a shard's receipted deltas a plan merges, with what weight and clip factor, and why.

The gates in order: base, tokens, finite, not empty, not a copy, norm, direction. Each one judges only what passed
those before it, so that copies do not vote on norms and garbage does not vote on directions. Honest sparse deltas
agree by a cosine of only .07 to .27 and share .07 to .23 of their positions; copies with noise share all of them, and
a sign flip has a negative cosine: so the floor of the cosine belongs at or a little below zero.

Pure: the same facts give the same decisions. Weight, clip factor and scale are float32 that the plan fixes as bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.codec.params import F32, F64
from common.merge.group import GroupStats
from common.merge.mean import member_scale
from common.merge.robust import Directions, directions, usual_norms, voices
from common.merge.shares import Share, capped_weights
from common.spec import GateSpec
from common.units import Coldkey, Hotkey, Revision


@dataclass(frozen=True)
class Candidate:
    """A receipted submission that decoded."""

    hotkey: Hotkey
    coldkey: Coldkey
    base: Revision
    tokens: int
    """Validated tokens."""
    received: int
    """Order of the receipts: of two copies the one received later is the copy."""
    newcomer: bool = False
    """Whether no delta of this hotkey was ever merged into the run."""


@dataclass(frozen=True)
class Accepted:
    """Goes into the mean. All three numbers are float32."""

    weight: float
    clip: float
    scale: float
    reason: str


@dataclass(frozen=True)
class RejectedDelta:
    """Stays out.

    Codes: base_mismatch, no_tokens, non_finite, zero_delta, duplicate, norm_too_large, wrong_direction.
    """

    code: str
    reason: str


Decision = Accepted | RejectedDelta


def check_delta(delta: F32) -> RejectedDelta | None:
    """What a sender and the API can say of one delta alone: not finite, or empty."""
    bad = int(np.count_nonzero(~np.isfinite(delta)))
    if bad:
        return RejectedDelta("non_finite", f"{bad} of {len(delta)} values are infinite or not a number")
    if not delta.any():
        return RejectedDelta("zero_delta", f"all {len(delta)} values are zero")
    return None


def decide(
    candidates: Sequence[Candidate],
    stats: GroupStats,
    policy: GateSpec,
    bases: Mapping[Revision, float],
) -> tuple[Decision, ...]:
    """A decision for each candidate, in order; ``stats`` has the same order.

    ``bases`` gives the revisions that are accepted as base, each with what its tokens count for. Fewer than three
    deltas are neither clipped nor rejected for their norm, since the median would be a suspect's: the held-out-loss
    guard stands behind them.
    """
    return _Gates(tuple(candidates), stats, policy, bases).decide()


@dataclass(frozen=True)
class _Gates:
    """The arguments of ``decide``; ``left`` is the indices that passed so far."""

    candidates: tuple[Candidate, ...]
    stats: GroupStats
    policy: GateSpec
    bases: Mapping[Revision, float]

    def decide(self) -> tuple[Decision, ...]:
        out: dict[int, Decision] = {i: found for i in self._left({}) if (found := self._alone(i))}
        out |= self._copies(self._left(out))
        usual = self._usual_norms(self._left(out))
        out |= self._oversized(self._left(out), usual)
        left = self._left(out)
        seen = directions(self._cosines(left), self._voices(left), self.policy.cosine_floor)
        out |= self._astray(left, seen)
        agreement = {i: float(seen.cosines[k]) for k, i in enumerate(left)}
        out |= self._accepted(self._left(out), usual, agreement, seen.undecided)
        return tuple(out[i] for i in range(len(self.candidates)))

    def _left(self, out: Mapping[int, Decision]) -> list[int]:
        return [i for i in range(len(self.candidates)) if i not in out]

    def _voices(self, left: Sequence[int]) -> F64:
        return voices([self.candidates[i].coldkey for i in left])

    def _cosines(self, left: Sequence[int]) -> F64:
        every = len(left) == len(self.candidates)
        among = self.stats.cosines if every else self.stats.cosines[np.ix_(left, left)]
        return among.astype(np.float64)

    def _tokens(self, i: int) -> float:
        one = self.candidates[i]
        return one.tokens * self.bases[one.base]

    def _alone(self, i: int) -> RejectedDelta | None:
        one = self.candidates[i]
        if one.base not in self.bases:
            allowed = ", ".join(str(base) for base in sorted(self.bases))
            return RejectedDelta("base_mismatch", f"made on revision {one.base}; this plan takes {allowed}")
        if not self._tokens(i) > 0:
            return RejectedDelta("no_tokens", f"{one.tokens} validated tokens")
        if not self.stats.finite[i]:
            return RejectedDelta("non_finite", "it holds infinite values or NaN")
        if self.stats.filled[i] == 0:
            return RejectedDelta("zero_delta", f"all {self.stats.count} values are zero")
        return None

    def _copies(self, left: Sequence[int]) -> dict[int, RejectedDelta]:
        """Later twins of earlier deltas: same direction, or the same positions whatever was done to the values."""
        cosines, overlaps, limit = self.stats.cosines, self.stats.overlaps, self.policy.copy_cosine
        alike = (cosines >= limit) | (overlaps >= limit)
        np.fill_diagonal(alike, False)
        involved = np.intersect1d(np.flatnonzero(alike.any(axis=1)), left)
        verdicts: dict[int, RejectedDelta] = {}
        originals: list[int] = []
        for i in sorted(involved.tolist(), key=lambda k: self.candidates[k].received):
            twins = np.flatnonzero(alike[i, originals])
            if twins.size:
                original = originals[twins[0]]
                verdicts[i] = self._duplicate(original, cosines[i, original], overlaps[i, original])
            else:
                originals.append(i)
        return verdicts

    def _duplicate(self, original: int, cosine: float, overlap: float) -> RejectedDelta:
        figures = f"cosine {cosine:.3f}, shared positions {overlap:.3f}"
        earlier = f"the delta that {self.candidates[original].hotkey} delivered before"
        limit = f"{self.policy.copy_cosine:.3f} makes it a copy"
        return RejectedDelta("duplicate", f"{figures} with {earlier}; {limit}")

    def _usual_norms(self, left: Sequence[int]) -> Mapping[int, float] | None:
        """The norm that is usual for the work in each; None when too few are left to know one."""
        tokens = np.array([self.candidates[i].tokens for i in left], dtype=np.float64)
        found = usual_norms(self.stats.norms[list(left)], tokens, self._voices(left))
        return None if found is None else dict(zip(left, found.tolist(), strict=True))

    def _oversized(self, left: Sequence[int], usual: Mapping[int, float] | None) -> dict[int, RejectedDelta]:
        if usual is None:
            return {}
        norms, most = self.stats.norms, self.policy.norm_factor
        times = {i: norms[i] / usual[i] for i in left if norms[i] > most * usual[i]}
        return {
            i: RejectedDelta(
                "norm_too_large",
                f"norm {norms[i]:.4g} is {over:.1f} times the usual {usual[i]:.4g}; {most:g} is the limit",
            )
            for i, over in times.items()
        }

    def _astray(self, left: Sequence[int], seen: Directions) -> dict[int, RejectedDelta]:
        agree, floor = int((~seen.outside).sum()), self.policy.cosine_floor
        return {
            i: RejectedDelta(
                "wrong_direction",
                f"cosine {seen.cosines[k]:.3f} to the mean of the {agree} that agree; the floor is {floor:.3f}",
            )
            for k, i in enumerate(left)
            if seen.outside[k]
        }

    def _accepted(
        self, left: Sequence[int], usual: Mapping[int, float] | None, cosines: Mapping[int, float], undecided: bool
    ) -> dict[int, Accepted]:
        shares = [Share(self._tokens(i), self.candidates[i].coldkey, self.candidates[i].newcomer) for i in left]
        accepted = {}
        for i, weight in zip(
            left, capped_weights(shares, self.policy.max_share, self.policy.newcomer_share), strict=True
        ):
            clip = self._clip(i, usual)
            notes = [f"{self.candidates[i].tokens} tokens weigh {weight:g}", f"cosine {cosines[i]:.3f} to the others"]
            notes += ["never merged before"] if self.candidates[i].newcomer else []
            notes += [f"clipped to {clip:.3f}"] if clip < 1 else []
            notes += ["too few deltas to know the usual norm"] if usual is None else []
            notes += ["the deltas disagree and neither side is a majority, so none is named"] if undecided else []
            accepted[i] = Accepted(weight, clip, member_scale(weight, clip), "; ".join(notes))
        return accepted

    def _clip(self, i: int, usual: Mapping[int, float] | None) -> float:
        if usual is None:
            return 1.0
        return float(np.float32(min(1.0, self.policy.clip_factor * usual[i] / float(self.stats.norms[i]))))
