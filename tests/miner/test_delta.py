"""Deltas: a manifest says what was done, and nothing absurd is sent."""

from __future__ import annotations

import numpy as np
import pytest

from common.codec.container import decode
from common.codec.params import delta_params
from common.errors import Rejected
from common.merge.account import Account, wanted
from common.model.layout import Vector
from common.records import ObjectRef, SampleRange, open_manifest
from common.units import Revision, RoundId, sha256_hex
from miner.delta import REJECTED_CAP, reopen
from miner.trace import trace_root
from tests.miner.working import COUNT, SPEC, TOKENS, noise, outstanding, work


@pytest.mark.parametrize("final", [False, True])
def test_a_manifest_says_what_was_done_and_opens(final: bool) -> None:
    done = work(noise(1))
    sent = outstanding(done, final=final).sent
    manifest, _ = open_manifest(sent.record.to_json(), SPEC.run)
    assert manifest == sent.manifest
    assert (manifest.final, manifest.tokens, manifest.steps) == (final, 4 * TOKENS, 4)
    assert manifest.samples == (SampleRange(RoundId(3), Revision(1), 0, 8),)
    assert manifest.delta == ObjectRef(sha256_hex(sent.delta), len(sent.delta))
    assert manifest.trace_root == trace_root(done.trace)
    assert manifest.key == manifest.expected_key()
    assert reopen(SPEC, sent.record.to_json(), sent.delta).manifest == manifest


def test_a_delta_says_the_decayed_residual_and_the_work() -> None:
    account = Account(noise(2, 1e-2))
    sent = outstanding(work(noise(1), revision=0), account, revision=0)  # dense, so that nothing is left out
    said = decode(sent.sent.delta, expect=delta_params(SPEC.codec, 0), count=COUNT)
    target = wanted(account, noise(1), SPEC.codec.feedback)
    assert np.allclose(said, target, atol=float(np.abs(target).max()))
    assert np.dot(said, target) > 0.5 * np.dot(target, target)
    assert sent.cap_norm == pytest.approx(REJECTED_CAP * np.linalg.norm(noise(1)), rel=1e-6)


@pytest.mark.parametrize(
    ("bad", "steps", "code"),
    [
        (np.zeros(COUNT, np.float32), 4, "zero_delta"),
        (noise(1), 0, "no_tokens"),
        (np.full(COUNT, np.nan, np.float32), 4, "non_finite"),
        (np.full(COUNT, np.inf, np.float32), 4, "non_finite"),
        (noise(1, 1.0), 4, "absurd_norm"),
    ],
)
def test_what_no_gate_would_pass_is_not_sent(bad: Vector, steps: int, code: str) -> None:
    with pytest.raises(Rejected) as refused:
        outstanding(work(bad, steps))
    assert refused.value.code == code


def test_a_stored_delta_with_other_bytes_is_refused() -> None:
    sent = outstanding(work(noise(1))).sent
    with pytest.raises(Rejected, match="bad_state"):
        reopen(SPEC, sent.record.to_json(), sent.delta[:-1] + bytes([sent.delta[-1] ^ 1]))
