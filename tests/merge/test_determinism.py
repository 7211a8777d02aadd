"""Bit for bit the same: against stored digests, and in processes with other SIMD levels and thread counts.

The digests were the same with numpy 2.0 and 2.4, with and without AVX2 and FMA. If one changes, old logs no longer
verify: that takes a new schema, not a new digest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from tests.merge import golden

ROOT = Path(__file__).resolve().parents[2]
DISPATCHED = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]

DIGESTS = {
    "mean": "a9731495bba7f701",
    "plain": "70f6efa4e281d2ee",
    "nesterov": "f403b33729b6e9ac",
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
}


def test_digests_are_the_stored_ones() -> None:
    assert golden.digests() == DIGESTS


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("disabled", [DISPATCHED, DISPATCHED[-1:], []], ids=["baseline", "no-newest", "all"])
def test_other_processors_and_threads_agree(disabled: list[str], threads: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NPY_DISABLE_CPU_FEATURES": " ".join(disabled),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.merge.golden"], env=environment, cwd=ROOT, check=True, capture_output=True
    )
    printed = json.loads(done.stdout)
    assert not set(printed.pop("features")) & set(disabled)
    assert printed == DIGESTS
