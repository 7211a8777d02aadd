"""Deltas: nothing is lost or counted twice over any history of rounds, and nothing absurd is sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.codec.container import decode
from common.codec.params import delta_params
from common.errors import Rejected
from common.identity import KeypairSigner
from common.merge.feedback import Feedback
from common.model.layout import Vector
from common.records import ObjectRef, open_manifest
from common.runlog.entries import PlanMember
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, Uid, sha256_hex
from miner.delta import REJECTED_CAP, Submission, build, reopen, settle, unsent
from miner.trace import TraceStep, trace_root
from miner.work import WorkDone
from tests.support.specs import tiny_spec

SIGNER = KeypairSigner.from_uri("//Miner0")
SPEC = tiny_spec()
COUNT = 6000


def work(moved: Vector, base: Vector, steps: int = 4, revision: int = 1) -> WorkDone:
    trace = tuple(TraceStep(i, 2 * i, 2, 4.0, 1.0) for i in range(steps))
    digest = Sha256("a" * 64)
    return WorkDone(RoundId(3), Revision(revision), digest, base + moved, 32 * steps, 0, 2 * steps, trace)


def moved(seed: int, size: float = 1e-3) -> Vector:
    return (np.random.default_rng(seed).standard_normal(COUNT) * size).astype(np.float32)


def member(sent: Submission, decision: str = "accepted", delta: ObjectRef | None = None) -> PlanMember:
    return PlanMember(
        shard=ShardId(0),
        hotkey=Hotkey(SIGNER.hotkey),
        uid=Uid(1),
        registered_block=1,
        delta=delta or sent.manifest.delta,
        manifest_sha256=sent.record.sha256,
        tokens_claimed=1,
        tokens=1,
        decision=decision,  # type: ignore[arg-type]
        code="" if decision == "accepted" else "norm_too_large",
        reason="",
        weight=1.0,
        scale=1.0,
    )


BASE = np.ones(COUNT, dtype=np.float32)


def test_a_manifest_says_what_was_done_and_opens() -> None:
    done = work(moved(1), BASE)
    sent = build(SPEC, Feedback.empty(COUNT), done, BASE, SIGNER)
    manifest, _ = open_manifest(sent.record.to_json(), SPEC.run)
    assert manifest == sent.manifest
    assert (manifest.tokens, manifest.steps, manifest.sample_count) == (128, 4, 8)
    assert manifest.delta == ObjectRef(sha256_hex(sent.delta), len(sent.delta))
    assert manifest.trace_root == trace_root(done.trace)
    assert reopen(SPEC, sent.record.to_json(), sent.target, sent.delta, sent.cap_norm).manifest == manifest


@given(st.lists(st.sampled_from(["accepted", "aborted", "left out", "other", "nothing sent"]), max_size=8))
def test_the_residual_and_what_was_merged_are_all_the_work(outcomes: list[str]) -> None:
    """With β = 1 the sum of all work equals the sum of what was merged plus the residual, whatever happened."""
    spec = replace(SPEC, codec=replace(SPEC.codec, feedback=1.0))
    memory, merged, done = Feedback.empty(COUNT), np.zeros(COUNT), np.zeros(COUNT)
    for number, outcome in enumerate(outcomes):
        step = work(moved(number), BASE)
        done += step.local - BASE
        if outcome == "nothing sent":
            memory = unsent(spec, memory, step.local - BASE).feedback
            continue
        sent = build(spec, memory, step, BASE, SIGNER)
        place = {"left out": None, "other": member(sent, delta=ObjectRef(Sha256("b" * 64), 1))}
        plan = place.get(outcome, member(sent))
        memory = settle(spec, memory, sent, plan, committed=outcome != "aborted").feedback
        if outcome == "accepted":
            merged += decode(sent.delta, expect=delta_params(spec.codec, 1), count=COUNT)
    assert np.allclose(merged + memory.residual, done, atol=1e-6)


def test_a_rejected_delta_is_kept_up_to_a_cap() -> None:
    sent = build(SPEC, Feedback(moved(2, 1e-2)), work(moved(1), BASE), BASE, SIGNER)
    settled = settle(SPEC, Feedback(moved(2, 1e-2)), sent, member(sent, "rejected"), committed=True)
    assert settled.residual_norm == pytest.approx(REJECTED_CAP * np.linalg.norm(moved(1)), rel=1e-3)
    assert settled.dropped_norm > 0


@pytest.mark.parametrize(
    ("bad", "steps", "code"),
    [
        (np.zeros(COUNT, np.float32), 4, "zero_delta"),
        (moved(1), 0, "no_tokens"),
        (np.full(COUNT, np.nan, np.float32), 4, "non_finite"),
        (np.full(COUNT, np.inf, np.float32), 4, "non_finite"),
        (moved(1, 1.0), 4, "absurd_norm"),
    ],
)
def test_what_no_gate_would_pass_is_not_sent(bad: Vector, steps: int, code: str) -> None:
    with pytest.raises(Rejected) as refused:
        build(SPEC, Feedback.empty(COUNT), work(bad, np.zeros(COUNT, np.float32), steps), np.zeros_like(BASE), SIGNER)
    assert refused.value.code == code


def test_work_that_is_not_finite_does_not_poison_the_residual() -> None:
    memory = Feedback(moved(1))
    settled = unsent(SPEC, memory, np.full(COUNT, np.nan, np.float32))
    assert np.array_equal(settled.feedback.residual, memory.residual)
    assert "not finite" in settled.reason


def test_a_stored_delta_with_other_bytes_is_refused() -> None:
    sent = build(SPEC, Feedback.empty(COUNT), work(moved(1), BASE), BASE, SIGNER)
    with pytest.raises(Rejected, match="bad_state"):
        reopen(SPEC, sent.record.to_json(), sent.target, sent.delta[:-1] + b"\x00", sent.cap_norm)
