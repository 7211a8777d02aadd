"""Bit for bit the same: against stored digests, and in processes with other SIMD levels, kernels and thread counts.

Plan → update → weights → outer state, and a delta's encoding. All of it is NumPy: torch trains and measures losses, of
which nothing has to agree. So torch only stands in the same process here, working with kernels and threads of its own.

The digests were the same with numpy 2.0 and 2.4, with and without AVX2 and FMA. If one changes, old logs no longer
verify: that takes a new schema, not a new digest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from common.runlog.recompute import apply_update
from tests.merge import golden, golden_round

ROOT = Path(__file__).resolve().parents[2]
DISPATCHED = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
"""What NumPy may choose on this processor, the oldest first."""
TORCH_LEVELS = ["DEFAULT", "AVX2", "AVX512"]
KERNELS = TORCH_LEVELS[: TORCH_LEVELS.index(torch.backends.cpu.get_cpu_capability()) + 1]
"""What torch may choose on this processor."""
PROCESSES = max(3, len(DISPATCHED) + 1, len(KERNELS))

DIGESTS = {
    "mean": "a9731495bba7f701",
    "plain": "70f6efa4e281d2ee",
    "nesterov": "f403b33729b6e9ac",
    "initial-weights": "ab41e86e80dfb629",
    "encode-topk-64-8": "eb66108e077a38f6",
    "decode-topk-64-8": "73b2c437cc779943",
    "update-topk-64-8": "05d3f48c84a0daaa",
    "encode-topk-64-16": "58fe5d6d8f79c4c5",
    "decode-topk-64-16": "c5ae3512b844b812",
    "update-topk-64-16": "0a1d4b5da966585b",
    "encode-topk-512-16": "ca8a5111763ae724",
    "decode-topk-512-16": "189d17eaab2c3d5e",
    "update-topk-512-16": "e1cd1ba19696d5d4",
    "encode-topk-1000-8": "1e612579ec861300",
    "decode-topk-1000-8": "52bea77aa87070e8",
    "update-topk-1000-8": "75e78e8f3674a690",
    "encode-topk-1024-16": "d1aa74d19dfe7ffc",
    "decode-topk-1024-16": "b6ee48f1e4d19422",
    "update-topk-1024-16": "21d29d171f3b8eaf",
    "encode-topk-4096-8": "f6ab76168bc5c7a7",
    "decode-topk-4096-8": "874c5c6e2c6618e8",
    "update-topk-4096-8": "e3b6af3a1d63d707",
    "encode-topk-4096-16": "d51d8e614909d7ab",
    "decode-topk-4096-16": "5de77f5f83519173",
    "update-topk-4096-16": "45c56008725e1f52",
    "encode-bf16-4096-16": "66bee234c267390b",
    "decode-bf16-4096-16": "e07936781e1774fc",
    "update-bf16-4096-16": "907644bbf17f7aa0",
    "topk-8-plain-update": "ae835f1e7c1aab77",
    "topk-8-plain-weights": "54ecabc567789146",
    "topk-8-plain-outer": "7deeab1f6ad169b2",
    "topk-8-nesterov-update": "ae835f1e7c1aab77",
    "topk-8-nesterov-weights": "d12c0d68f4a96d8f",
    "topk-8-nesterov-outer": "80122ecd8b283111",
    "topk-16-plain-update": "25a9b8955fcffc39",
    "topk-16-plain-weights": "46dbd08177d4b459",
    "topk-16-plain-outer": "bdb03b73e47ebce5",
    "topk-16-nesterov-update": "25a9b8955fcffc39",
    "topk-16-nesterov-weights": "094624e774e4a6d8",
    "topk-16-nesterov-outer": "099f5f688db7d739",
    "bf16-plain-update": "99f61bb6b44fc923",
    "bf16-plain-weights": "bb591019c70dcb38",
    "bf16-plain-outer": "4ccef12d3bc17da3",
    "bf16-nesterov-update": "99f61bb6b44fc923",
    "bf16-nesterov-weights": "2f365f71f51d1487",
    "bf16-nesterov-outer": "7cc5418ad9b66c77",
}


def test_digests_are_the_stored_ones() -> None:
    assert golden.digests() == DIGESTS


@pytest.mark.parametrize("process", range(PROCESSES))
def test_other_processors_kernels_and_threads_agree(process: int) -> None:
    disabled = DISPATCHED[process % (len(DISPATCHED) + 1) :]
    kernels = KERNELS[process % len(KERNELS)]
    threads = str((1, 2, 4)[process % 3])
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NPY_DISABLE_CPU_FEATURES": " ".join(disabled),
        "ATEN_CPU_CAPABILITY": kernels.lower(),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.merge.golden"], env=environment, cwd=ROOT, check=True, capture_output=True
    )
    printed = json.loads(done.stdout)
    assert not set(printed["features"]) & set(disabled)
    assert printed["kernels"] == kernels
    assert printed["digests"] == DIGESTS


@pytest.mark.parametrize("outer", list(golden_round.OUTERS))
@pytest.mark.parametrize("codec", list(golden_round.CODECS))
def test_whoever_reads_only_the_update_makes_the_same_revision(codec: str, outer: str) -> None:
    spec = golden_round.spec_of(codec, outer)
    merged = golden_round.merged(spec)
    before = golden_round.WEIGHTS_BEFORE.copy(), golden_round.momentum_before(spec)
    weights, momentum = apply_update(spec, golden_round.BASE, merged.update_bytes, *before)
    assert weights.tobytes() == merged.new_weights.tobytes()
    if momentum is not None and merged.new_outer_state.momentum is not None:
        assert momentum.tobytes() == merged.new_outer_state.momentum.tobytes()
    assert (momentum is None) == (merged.new_outer_state.momentum is None)
    assert np.array_equal(golden_round.WEIGHTS_BEFORE, before[0])
