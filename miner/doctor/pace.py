"""Whether a machine keeps up with a run, and with how many tokens a round. Pure: measured rates and the round's needs.

A miner keeps up when in every round it can take in the last update, take at least one whole step, and have its delta
there before the freeze. A slow machine brings a smaller bucket, which is fine; one that is never in time brings none.
Between closing and freeze an upload is given ``UPLOAD_SAFETY`` times what it should take; whose upload takes longer
hands in before the closing, once it has a quarter of a round's steps (``miner/policy.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.units import format_bytes, format_duration, format_rate
from miner.deadlines import UPLOAD_SAFETY
from miner.doctor.needs import RoundNeed


@dataclass(frozen=True)
class Rates:
    """What was measured; None where it could not be."""

    tokens_per_s: float
    encode_s: float
    up_bps: float | None
    down_bps: float | None
    round_s: float | None
    """The run's rounds take so long at present."""


@dataclass(frozen=True)
class Answer:
    """The one question's."""

    keeps_up: bool
    reasons: tuple[str, ...]
    """Why not; empty when it does."""
    steps: int
    """In a round of ``round_s``."""
    tokens: int
    share: float
    """Of what is planned for a miner."""
    round_s: float
    """As rounds are at present; where that is not known, as they would be among machines like this one: a round closes
    when all have trained together what it wants, and at its deadline at the latest."""
    wanted_up_bps: float
    """With so much the delta is there in time after the closing."""
    least_up_bps: float
    """With less it is never there in time."""
    least_down_bps: float


def answer(need: RoundNeed, rates: Rates) -> Answer:
    """Judge ``rates`` by ``need``."""
    step_s = need.step_tokens / rates.tokens_per_s
    upload_s = None if rates.up_bps is None else rates.encode_s + 8 * need.delta_bytes / rates.up_bps
    early = upload_s is not None and need.times.must_be_early(upload_s)
    round_s = min(rates.round_s or need.nominal_tokens / rates.tokens_per_s, need.train_s)
    train_s = min(round_s, need.longest_s - need.times.needed_s(upload_s)) if early and upload_s else round_s
    steps = max(0, math.floor(train_s / step_s * (1 + 1e-9)))  # as many as planned, in just the time that they take
    down_s = need.longest_s - step_s
    return Answer(
        keeps_up=not (reasons := tuple(_reasons(need, rates, step_s, upload_s))),
        reasons=reasons,
        steps=steps,
        tokens=steps * need.step_tokens,
        share=steps / need.nominal_steps,
        round_s=round_s,
        wanted_up_bps=_up_bps(need, rates, need.times.submit_s),
        least_up_bps=_up_bps(need, rates, max(need.times.submit_s, need.longest_s - need.early_steps * step_s)),
        least_down_bps=8 * need.update_bytes / down_s if down_s > 0 else math.inf,
    )


def _reasons(need: RoundNeed, rates: Rates, step_s: float, upload_s: float | None) -> list[str]:
    """Why it would not keep up."""
    found = []
    if step_s > need.train_s:
        found.append(
            f"one inner step of {need.step_tokens:,} tokens takes {format_duration(step_s)}, and a round closes after "
            f"{format_duration(need.train_s)}: take a faster machine"
        )
        step_s = 0.0  # what follows is about the links
    if rates.down_bps is not None and (down_s := 8 * need.update_bytes / rates.down_bps) + step_s > need.longest_s:
        found.append(
            f"at {format_rate(rates.down_bps)} down the {format_bytes(need.update_bytes)} of an update take "
            f"{format_duration(down_s)}, and a round lasts {format_duration(need.longest_s)} at most: "
            f"{format_rate(8 * need.update_bytes / max(need.longest_s - step_s, 1e-3))} are needed"
        )
    if upload_s is not None and need.times.must_be_early(upload_s):
        needed_s = need.times.needed_s(upload_s)
        if needed_s + need.early_steps * step_s > need.longest_s:
            found.append(
                f"handing in {format_bytes(need.delta_bytes)} takes {format_duration(upload_s)}, longer than a round "
                f"of {format_duration(need.longest_s)} leaves: a faster uplink is needed"
            )
    return found


def _up_bps(need: RoundNeed, rates: Rates, time_s: float) -> float:
    left_s = time_s / UPLOAD_SAFETY - rates.encode_s
    return 8 * need.delta_bytes / left_s if left_s > 0 else math.inf
