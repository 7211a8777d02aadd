"""The spec that a run has when nobody says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from common import cli
from common.codec.container import encoded_size
from common.codec.params import delta_params
from common.defaults import POLICIES, Choices, make_spec
from common.errors import OperatorError
from common.model.presets import PRESETS
from common.spec import RunSpec, decode_spec, encode_spec
from common.units import Revision, Sha256
from tests.support.specs import OWNER, VALIDATOR

CHOICES: dict[str, Any] = {"run": "demo", "preset": "nano", "seed": 0, "miners": 4}


def spec_of(**changes: Any) -> RunSpec:
    return make_spec(Choices(**(CHOICES | changes)), 2, OWNER.hotkey, [VALIDATOR.hotkey], Sha256("0" * 64), "bytes")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_policy_that_makes_a_spec(preset: str) -> None:
    assert set(PRESETS) == set(POLICIES)
    spec = spec_of(preset=preset)
    assert decode_spec(encode_spec(spec)) == spec
    assert spec.data.seq_len <= spec.model.max_seq_len


def test_the_demos_figures() -> None:
    spec = spec_of()
    assert spec.round.target_tokens == 4 * 60 * 8 * 128
    assert spec.round.quorum_tokens == spec.round.target_tokens // 4
    assert [spec.codec.delta_density(revision) for revision in (0, 1, 2, 3, 9)] == [4096, 4096, 2048, 1024, 512]
    assert [spec.inner.steps_of(Revision(revision)) for revision in (0, 1, 2, 3, 9)] == [20, 30, 45, 60, 60]
    assert spec.target_tokens(Revision(0)) == 4 * 20 * 8 * 128
    assert (spec.inner.kind, spec.inner.decay_steps) == ("muon", 20 + 30 + 45 + 9 * 60)
    assert (spec.outer.lr, spec.outer.momentum) == (1.0, 0.0)


def test_a_sparse_delta_is_195_times_smaller_than_its_float32() -> None:
    codec = spec_of(density=64).codec
    count = 1 << 26
    assert 4 * count / encoded_size(count, delta_params(codec, Revision(0))) >= 195
    assert spec_of(codec="bf16").codec.magnitude_bits == 16


def test_choices_reach_the_spec() -> None:
    spec = spec_of(seed=7, density=64, steps=10, miners=2)
    assert (spec.seed, spec.model.init_seed) == (7, 7)
    assert spec.codec.density_schedule == (64,)
    assert (spec.inner.steps_schedule, spec.round.target_tokens) == ((10,), 2 * 10 * 8 * 128)
    assert spec_of(codec="bf16").codec.density_schedule == (4096,)


def test_the_schedule_does_not_depend_on_how_often_a_run_is_continued() -> None:
    assert spec_of() == spec_of()
    assert spec_of(miners=2).inner == spec_of(miners=8).inner


@pytest.mark.parametrize(
    "wrong",
    [
        {"preset": "huge"},
        {"run": "No Capitals"},
        {"density": 5000},
        {"codec": "bf16", "density": 64},
        {"codec": "zip"},
        {"num_shards": 2},
        {"reduce": "nobody"},
    ],
)
def test_contradictions_are_refused_in_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(OperatorError):
        spec_of(**wrong)


@pytest.mark.parametrize(("flag", "value"), [("--codec", "zip"), ("--num-shards", "2"), ("--reduce", "nobody")])
def test_run_create_refuses_in_one_line(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it opens anything: none of these paths exist."""
    places = ("--wallet-path", "w", "--storage", "s", "--data", "d", "--validator", "v", "--chain", "ws://127.0.0.1:1")
    assert cli.run(["run", "create", "--run", "r", "--netuid", "1", *places, flag, value]) == 2
    line = capsys.readouterr().err
    assert len(line.splitlines()) == 1
    assert f"{flag} {value}" in line
