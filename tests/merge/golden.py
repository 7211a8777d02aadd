"""Computes one digest per operation that machines must agree on; run as a script it prints them as JSON.

The script first makes torch work, as it does in a validator's process: neither its threads nor the modes that it sets
may reach what NumPy computes.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from numpy._core._multiarray_umath import __cpu_features__

from common.codec.container import decode, encode
from common.codec.params import CodecParams
from common.merge.mean import divisor_of, member_scale
from common.merge.outer import compress_update, outer_step
from common.model.init import init_vector
from common.model.shards import plan_shards
from tests.merge.golden_inputs import COUNT, digest, noise
from tests.merge.golden_round import round_digests
from tests.merge.means import weighted_mean
from tests.support.specs import tiny_spec

TOPK = [(64, 8), (64, 16), (512, 16), (1000, 8), (1024, 16), (4096, 8), (4096, 16)]
CODECS = {f"topk-{density}-{bits}": CodecParams("topk", density, bits) for density, bits in TOPK}
CODECS["bf16-4096-16"] = CodecParams("bf16")


def digests() -> dict[str, str]:
    deltas = [noise(seed) for seed in range(5)]
    weights = [3.0, 1.0, float(np.float32(0.1)), 12345.0, 7.0]
    clips = [1.0, float(np.float32(0.3)), 1.0, 1.0, float(np.float32(0.77))]
    scales = [member_scale(weight, clip) for weight, clip in zip(weights, clips, strict=True)]
    mean = weighted_mean(zip(scales, deltas, strict=True), divisor_of(weights))
    found = {"mean": digest(mean), "plain": digest(*outer_step(deltas[0], mean, None, 0.7, 0.0))}
    found["nesterov"] = digest(*outer_step(deltas[0], mean, deltas[1], 0.7, 0.9))
    found["initial-weights"] = digest(init_vector(tiny_spec().model, plan_shards(tiny_spec().model, 1)[0]))
    for name, codec in CODECS.items():
        data = encode(deltas[2], codec)
        found[f"encode-{name}"] = digest(data)
        found[f"decode-{name}"] = digest(decode(data, expect=codec, count=COUNT))
        update = compress_update(mean, deltas[3], codec)
        found[f"update-{name}"] = digest(update.data, update.values, update.residual)
    return found | dict(round_digests())


def make_torch_work() -> str:
    """A matrix product forwards and backwards on all of its threads; what torch says of its kernels."""
    weights = torch.randn(256, 256, requires_grad=True)
    torch.autograd.backward((torch.randn(64, 256) @ weights).square().sum())
    return torch.backends.cpu.get_cpu_capability()


if __name__ == "__main__":
    kernels = make_torch_work()
    enabled = [name for name, present in __cpu_features__.items() if present]
    print(json.dumps({"digests": digests(), "features": enabled, "kernels": kernels}))
