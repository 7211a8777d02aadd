"""The split of a model into S contiguous shards, balanced by parameters.

Pure: from the spec alone every node gets the same split. Invariant: shards are contiguous, each holds at least one
layer, the first has the embedding, the last the final norm and the output head. The split minimises the largest
shard; of equals it takes the one whose early shards are smallest, since those carry the most activations in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from common.errors import OperatorError
from common.spec import ModelSpec
from common.units import ShardId


@dataclass(frozen=True)
class ShardLayers:
    """What one shard holds: layers ``first_layer <= i < end_layer`` of the whole, and perhaps the ends."""

    shard: ShardId
    first_layer: int
    end_layer: int
    has_embedding: bool
    has_head: bool

    @property
    def layers(self) -> range:
        """Indices of the decoder layers, as in the whole model."""
        return range(self.first_layer, self.end_layer)


def layer_parameters(spec: ModelSpec) -> int:
    """Parameters of one decoder layer."""
    kv_size = spec.hidden_size // spec.num_heads * spec.num_kv_heads
    attention = 2 * spec.hidden_size * spec.hidden_size + 2 * kv_size * spec.hidden_size
    return attention + 3 * spec.ffn_size * spec.hidden_size + 2 * spec.hidden_size


def parameter_count(spec: ModelSpec) -> int:
    """Parameters of the whole model; a tied head counts once."""
    tables = 1 if spec.tied_head else 2
    return (tables * spec.vocab_size + 1) * spec.hidden_size + spec.num_layers * layer_parameters(spec)


def plan_shards(spec: ModelSpec, num_shards: int) -> tuple[ShardLayers, ...]:
    """Split ``spec`` into ``num_shards`` shards. Raises OperatorError for a split that can't be."""
    if not 1 <= num_shards <= spec.num_layers:
        raise OperatorError(f"num_shards {num_shards}: choose between 1 and the model's {spec.num_layers} layers")
    if spec.tied_head and num_shards > 1:
        raise OperatorError(f"num_shards {num_shards} needs tied_head = false: a tied head lives in two shards at once")
    ends = _best_ends(spec, num_shards)
    starts = (0, *ends[:-1])
    last = num_shards - 1
    return tuple(
        ShardLayers(ShardId(i), first, end, has_embedding=i == 0, has_head=i == last)
        for i, (first, end) in enumerate(zip(starts, ends, strict=True))
    )


def _best_ends(spec: ModelSpec, num_shards: int) -> tuple[int, ...]:
    """End layer of each shard: the split with the smallest largest part, by dynamic programming over layers."""
    layer = layer_parameters(spec)
    embedding = spec.vocab_size * spec.hidden_size
    head = embedding + spec.hidden_size

    def size(first: int, end: int) -> int:
        ends = (embedding if first == 0 else 0) + (head if end == spec.num_layers else 0)
        return layer * (end - first) + ends

    @cache
    def best(first: int, shards: int) -> tuple[int, tuple[int, ...]]:
        """(largest part, ends) of the layers from ``first`` on."""
        if shards == 1:
            return size(first, spec.num_layers), (spec.num_layers,)
        found: list[tuple[int, tuple[int, ...]]] = []
        for end in range(first + 1, spec.num_layers - shards + 2):
            largest, ends = best(end, shards - 1)
            found.append((max(size(first, end), largest), (end, *ends)))
        return min(found)

    return best(0, num_shards)[1]
