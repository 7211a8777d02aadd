"""Error feedback: no mass is lost, none is sent twice, and what a cap drops is counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.container import decode, encode
from common.codec.params import F32, CodecParams
from common.merge import feedback as fb

COUNT = 9000
CODEC = CodecParams("topk", 64, 8)
ZERO = np.zeros(COUNT, dtype=np.float32)


def normal(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(COUNT).astype(np.float32)


def through_codec(values: F32) -> F32:
    return decode(encode(values, CODEC), expect=CODEC, count=COUNT)


def test_target_adds_the_decayed_residual() -> None:
    memory = fb.Feedback(normal(0))
    wanted = fb.target(memory, normal(1), normal(2), 0.95)
    expected = normal(0) * np.float32(0.95) + (normal(1) - normal(2))
    assert wanted.tobytes() == expected.tobytes()


def test_nothing_named_keeps_everything() -> None:
    settled = fb.not_named(fb.Feedback(normal(0)), normal(1))
    assert settled.feedback.residual.tobytes() == normal(1).tobytes()
    assert settled.dropped_norm == 0


def test_an_earlier_drip_that_was_named_is_what_counts() -> None:
    final, drip = normal(1), through_codec(normal(2))
    assert fb.named(fb.Feedback(ZERO), final, drip).feedback.residual.tobytes() == (final - drip).tobytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), max_size=25))
def test_mass_is_conserved_over_any_history(history: list[bool]) -> None:
    """What was wanted = what was merged + residual, up to float32 rounding, whether a plan named it or not."""
    memory = fb.Feedback.empty(COUNT)
    wanted_in_all, merged = np.zeros(COUNT), np.zeros(COUNT)
    for step, was_named in enumerate(history):
        wanted_in_all += normal(step)
        wanted = fb.target(memory, normal(step), ZERO, 1.0)
        sent = through_codec(wanted)
        merged += sent if was_named else ZERO
        memory = (fb.named(memory, wanted, sent) if was_named else fb.not_named(memory, wanted)).feedback
    assert np.abs(wanted_in_all - merged - memory.residual).max() < 1e-4


def test_the_cap_after_a_rejection_says_what_it_dropped() -> None:
    settled = fb.rejected(fb.Feedback(ZERO), normal(1), 10.0)
    assert settled.residual_norm == pytest.approx(10.0, rel=1e-5)
    assert settled.residual_norm + settled.dropped_norm == pytest.approx(fb.norm(normal(1)), rel=1e-5)
    assert "dropped a norm of" in settled.reason
    within = fb.rejected(fb.Feedback(ZERO), normal(1), 1e9)
    assert within.feedback.residual.tobytes() == normal(1).tobytes()
    assert within.dropped_norm == 0
