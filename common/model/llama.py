"""A Llama decoder (arXiv 2302.13971; grouped-query attention of arXiv 2305.13245) as one shard of a pipeline.

Parameters carry Hugging Face's names, and with the same weights the logits match ``LlamaForCausalLM``. Invariant: a
``ShardModel`` that holds all layers is the whole model, and the shards of one split, composed, do the same operations
on the same tensors, so their logits are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.model.shards import ShardLayers
from common.spec import ModelSpec


class RMSNorm(nn.Module):
    """Root mean square norm with a learned scale, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """Rotary position embedding: tables of cos and sin, float32 [max_seq_len, head_size], no part of the weights."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_size, self.theta = spec.hidden_size // spec.num_heads, spec.rope_theta
        self.cos: Tensor
        self.sin: Tensor
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(spec.max_seq_len, self.head_size), persistent=False)
        self.fill()

    def fill(self) -> None:
        """Compute the tables in place; again after a module built on the meta device got its memory."""
        rates = self.theta ** -(torch.arange(0, self.head_size, 2, dtype=torch.float64, device="cpu") / self.head_size)
        places = torch.arange(self.cos.shape[0], dtype=torch.float64, device="cpu")
        angles = torch.outer(places, rates).repeat(1, 2)
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        """Rotate [batch, heads, time, head_size]; the two halves of a head are the pair's coordinates."""
        time = x.shape[-2]
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (x * self.cos[:time] + turned * self.sin[:time]).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention whose key and value heads are each shared by a group of query heads."""

    def __init__(self, spec: ModelSpec, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.kv_heads = spec.num_heads, spec.num_kv_heads
        kv_size = spec.hidden_size // spec.num_heads * spec.num_kv_heads
        self.q_proj = nn.Linear(spec.hidden_size, spec.hidden_size, bias=False)
        self.k_proj = nn.Linear(spec.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(spec.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(spec.hidden_size, spec.hidden_size, bias=False)
        self._rotary = (rotary,)  # in a tuple, so that the shared table is not a submodule of every layer

    def forward(self, x: Tensor) -> Tensor:
        rotary = self._rotary[0]
        q = rotary(self._split(self.q_proj(x), self.heads))
        k = rotary(self._split(self.k_proj(x), self.kv_heads))
        v = self._split(self.v_proj(x), self.kv_heads)
        grouped = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        merged: Tensor = self.o_proj(y.transpose(1, 2).reshape(x.shape))
        return merged

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        batch, time, size = x.shape
        return x.view(batch, time, heads, size // heads).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.ffn_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.ffn_size, bias=False)
        self.down_proj = nn.Linear(spec.ffn_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, spec: ModelSpec, rotary: Rotary) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.self_attn = Attention(spec, rotary)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class ShardBody(nn.Module):
    """What Hugging Face calls ``model``: embedding, layers under their global index, final norm."""

    def __init__(self, spec: ModelSpec, shard: ShardLayers) -> None:
        super().__init__()
        self.rotary = Rotary(spec)
        if shard.has_embedding:
            # An empty weight, since the default's random numbers import a compiler, two seconds of CPU a process.
            empty = torch.empty(spec.vocab_size, spec.hidden_size)
            self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size, _weight=empty)
        self.layers = nn.ModuleDict({str(index): DecoderLayer(spec, self.rotary) for index in shard.layers})
        if shard.has_head:
            self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)


class ShardModel(nn.Module):
    """One shard: takes tokens int64 [batch, time] if it has the embedding, else hidden states [batch, time, hidden].

    Returns logits [batch, time, vocab] if it has the head, else hidden states. Weights are PyTorch's defaults until
    ``flat.bind`` gives the module its vector. Sequences longer than ``max_seq_len`` raise ValueError.
    """

    def __init__(self, spec: ModelSpec, shard: ShardLayers) -> None:
        super().__init__()
        self.spec, self.shard = spec, shard
        self.model = ShardBody(spec, shard)
        if shard.has_head and not spec.tied_head:
            self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.spec.max_seq_len:
            raise ValueError(f"{x.shape[1]} tokens are more than max_seq_len {self.spec.max_seq_len}")
        if self.shard.has_embedding:
            x = self.model.embed_tokens(x)
        for layer in self.model.layers.values():
            x = layer(x)
        return self._logits(self.model.norm(x)) if self.shard.has_head else x

    def _logits(self, x: Tensor) -> Tensor:
        head = self.model.embed_tokens.weight if self.spec.tied_head else self.lm_head.weight
        return F.linear(x, head)


def compose(shards: Sequence[ShardModel], tokens: Tensor) -> Tensor:
    """Run all shards of one split in order: tokens [batch, time] → logits."""
    x = tokens
    for shard in shards:
        x = shard(x)
    return x
