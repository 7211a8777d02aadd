"""The run spec: it round-trips, and settings that contradict each other or cost without bound are refused in words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from common import canonical
from common.errors import Rejected
from common.spec import decode_spec, encode_spec, spec_hash
from common.typed import to_json
from common.units import Revision
from tests.support.specs import tiny_spec


def test_a_spec_comes_back_as_it_was() -> None:
    spec = tiny_spec()
    assert decode_spec(encode_spec(spec)) == spec
    assert spec_hash(decode_spec(encode_spec(spec))) == spec_hash(spec)


def test_young_rounds_are_short_and_close_at_fewer_tokens() -> None:
    spec = tiny_spec()
    spec = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, steps_schedule=(1, 2, 8)))
    assert [spec.inner.steps_of(Revision(r)) for r in range(5)] == [1, 2, 8, 8, 8]
    assert [spec.inner.first_step(Revision(r)) for r in range(5)] == [0, 1, 3, 11, 19]
    full = spec.round.target_tokens
    assert [spec.target_tokens(Revision(r)) for r in range(4)] == [full // 8, full // 4, full, full]
    assert spec.quorum_tokens(Revision(0)) == spec.round.quorum_tokens // 8


IMPOSSIBLE: list[tuple[str, str, Any]] = [
    ("gates", "clip_factor", 6.0),
    ("gates", "clip_factor", 0.0),
    ("gates", "cosine_floor", 1.0),
    ("gates", "cosine_floor", -1.5),
    ("gates", "copy_cosine", 0.0),
    ("gates", "copy_cosine", 1.5),
    ("gates", "max_share", 0.0),
    ("gates", "max_share", 1.5),
    ("gates", "claim_slack", 0.5),
    ("scoring", "average_rounds", 0),
    ("scoring", "assigned_sequences", 0),
    ("scoring", "unseen_sequences", -1),
    ("scoring", "unseen_sequences", 1 << 30),
    ("round", "heartbeat_s", 0.0),
    ("round", "heartbeat_s", -1.0),
    ("round", "member_timeout_s", 0.5),
    ("round", "train_deadline_s", 0.0),
    ("round", "submit_deadline_s", 1e9),
    ("round", "snapshot_every", 0),
    ("round", "quorum_tokens", 0),
    ("model", "max_seq_len", 0),
    ("model", "max_seq_len", 1 << 40),
    ("model", "num_layers", 100_000),
    ("model", "rope_theta", 0.0),
    ("model", "norm_eps", 0.0),
    ("round", "drip_s", -1.0),
    ("reduce", "partitions", 0),
    ("reduce", "partitions", 1 << 20),
    ("reduce", "audits", 1),
    ("reduce", "redundancy", 2),
    ("round", "late_weight", 0.0),
    ("round", "late_weight", 1.5),
    ("gates", "newcomer_share", 0.0),
    ("gates", "damping_at", 0.0),
    ("gates", "damping_at", 1.5),
    ("inner", "steps_schedule", ()),
    ("inner", "steps_schedule", (0,)),
    ("inner", "steps_schedule", (1 << 40,)),
    ("inner", "steps_schedule", (1,) * 5000),
    ("codec", "density_schedule", (64,) * 5000),
    ("inner", "batch_size", 1 << 40),
    ("inner", "batch_size", 0),
    ("inner", "beta2", 1.0),
    ("inner", "eps", 0.0),
    ("inner", "grad_clip", -1.0),
    ("inner", "weight_decay", -0.1),
    ("inner", "min_lr_ratio", 2.0),
]


@pytest.mark.parametrize(("section", "field", "value"), IMPOSSIBLE)
def test_impossible_settings_are_refused_when_built_and_when_read(section: str, field: str, value: Any) -> None:
    spec = tiny_spec()
    with pytest.raises(ValueError, match=r"must|longer|least|between|≥"):
        dataclasses.replace(getattr(spec, section), **{field: value})
    table: Any = to_json(spec)
    table[section][field] = to_json(_One(value))["value"]  # type: ignore[index,call-overload]
    with pytest.raises(Rejected) as caught:
        decode_spec(canonical.dumps(table))
    assert caught.value.code == "bad_spec"


def test_sizes_that_only_together_are_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match="a tensor of"):
        dataclasses.replace(tiny_spec().model, hidden_size=1 << 20, vocab_size=1 << 20)


@dataclasses.dataclass(frozen=True)
class _One:
    value: float | int
