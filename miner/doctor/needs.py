"""What a run asks of one miner's machine: memory, disk, bytes and time of a round. Pure arithmetic on the spec.

All of it is counted for one shard, so that a run of several needs no other figures. What is counted is what the
trainer and the account hold. Activations are those that PyTorch keeps for the way back through ``common/model``: of a
layer and token two float32 inputs of its norms and the products of both, and in the type of the multiplications
(bfloat16 on a GPU) the matrices' inputs, queries, keys, values and what SwiGLU is made of; the gradients of one layer;
of the head the logits, their float32 log-softmax and two gradients. On a CPU the steps of nano (8 and 64 sequences) and
of 125m cut to 2 and 4 layers took .87 to 1.03 times what is computed here; on a GPU nobody has compared it yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.codec.container import encoded_size
from common.codec.params import delta_params, update_params
from common.logs import KEPT, MAX_BYTES
from common.model.layout import layout_of
from common.model.shards import ShardLayers, layer_parameters
from common.spec import RunSpec
from common.units import Revision
from miner.deadlines import DEFAULT_NOTICE_S, Deadlines
from miner.policy import EARLY_SHARE

F32_BYTES, BF16_BYTES = 4, 2
USUAL_VECTORS = 9
"""Of the shard's length in the host's memory: base, residual, the optimizer's two as of the last settlement, the work
of two submissions, work put away, and what is pending: target and delta."""
PEAK_VECTORS = 17
"""The same while a revision is applied and the state is written: update, new weights, and the file's own vectors."""
MUON_VECTORS = 6
"""Copies of the matrices of one shape that Muon holds at a time; about half of a layer's are of one."""
LIBRARY_BYTES = 64 << 20
"""PyTorch's own, at the first step."""
STATE_VECTORS = 2 * 5 + 3
"""On disk: residual, two moments, pending and put-away work, the old file beside the new one; and three submissions."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes. On a CPU device and host are one memory."""

    weights_bytes: int
    """With the gradients, and on a GPU the copies in bfloat16."""
    optimizer_bytes: int
    activations_bytes: int
    """At the spec's batch, and what the libraries take."""
    account_bytes: int
    """Residual, base, submissions; in the host's memory."""
    peak_account_bytes: int
    """The same for the moments when a revision is applied and stored."""

    @property
    def device_bytes(self) -> int:
        return self.weights_bytes + self.optimizer_bytes + self.activations_bytes


@dataclass(frozen=True)
class RoundNeed:
    """What a miner has to do in one round."""

    step_tokens: int
    nominal_steps: int
    """Inner steps of a round, as the learning rate's schedule counts them."""
    delta_bytes: int
    """Way up."""
    update_bytes: int
    """Way down."""
    times: Deadlines
    train_s: float
    """From the first miner at work to the closing, at most."""

    @property
    def nominal_tokens(self) -> int:
        return self.nominal_steps * self.step_tokens

    @property
    def longest_s(self) -> float:
        """From the round's beginning to the moment when uploads must be there, at most."""
        return self.train_s + self.times.submit_s

    @property
    def early_steps(self) -> float:
        """Whoever can't upload between closing and freeze hands in before, when it has so many steps."""
        return max(1.0, EARLY_SHARE * self.nominal_steps)


def memory_need(spec: RunSpec, shard: ShardLayers, on_gpu: bool) -> MemoryNeed:
    """Of the trainer on its device and of the account on the host."""
    count = layout_of(spec.model, shard).total
    layers = len(shard.layers) * layer_parameters(spec.model) if spec.inner.kind == "muon" else 0
    momentum = 1 if spec.outer.momentum > 0 else 0
    return MemoryNeed(
        weights_bytes=count * (2 * F32_BYTES + (BF16_BYTES if on_gpu else 0)),
        optimizer_bytes=F32_BYTES * (2 * count + MUON_VECTORS * layers // 2),
        activations_bytes=LIBRARY_BYTES + _activation_bytes(spec, shard, BF16_BYTES if on_gpu else F32_BYTES),
        account_bytes=F32_BYTES * count * (USUAL_VECTORS + momentum),
        peak_account_bytes=F32_BYTES * count * (PEAK_VECTORS + momentum),
    )


def state_bytes(spec: RunSpec, shard: ShardLayers) -> int:
    """Disk of a miner's own state and logs, at most in a usual round."""
    return F32_BYTES * layout_of(spec.model, shard).total * STATE_VECTORS + (KEPT + 1) * MAX_BYTES


def round_need(spec: RunSpec, shard: ShardLayers, head: Revision) -> RoundNeed:
    """Of a round on ``head``."""
    count = layout_of(spec.model, shard).total
    return RoundNeed(
        step_tokens=spec.inner.batch_size * spec.data.seq_len,
        nominal_steps=spec.inner.steps_of(head),
        delta_bytes=encoded_size(count, delta_params(spec.codec, head)),
        update_bytes=encoded_size(count, update_params(spec.codec, head)),
        times=Deadlines.of(spec, DEFAULT_NOTICE_S),
        train_s=spec.round.train_deadline_s,
    )


def _activation_bytes(spec: RunSpec, shard: ShardLayers, type_bytes: int) -> int:
    model, hidden, ffn_size = spec.model, spec.model.hidden_size, spec.model.ffn_size
    layer = 4 * F32_BYTES * hidden + type_bytes * (7 * hidden + 4 * ffn_size)  # keys and values widened to all heads
    way_back = type_bytes * 4 * (hidden + ffn_size)
    head = model.vocab_size * (type_bytes + 3 * F32_BYTES) if shard.has_head else 0
    return spec.inner.batch_size * spec.data.seq_len * (len(shard.layers) * layer + way_back + head)
