"""A shard model whose parameters are views into one flat vector.

The trainer, the codec and the hash all work on the flat vector; the model's layers work on views of the same memory.
Nothing is copied or reallocated between the two: replacing the weights of a revision is one copy into the vector.
Invariant: after ``bind`` every ``parameter.data`` (and, if asked, ``parameter.grad``) shares memory with the vector.
Moving the module with ``.to()`` would break that, so the device is chosen when the shard is built.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.model.layout import Layout, Vector, layout_of
from common.model.llama import ShardModel
from common.model.shards import ShardLayers
from common.spec import ModelSpec


@dataclass(frozen=True)
class FlatShard:
    """A shard on a device, with its flat weights and flat gradients (float32 [layout.total])."""

    module: ShardModel
    layout: Layout
    weights: Tensor
    grads: Tensor

    def take(self) -> Vector:
        """A copy of the weights in the host's memory."""
        return self.weights.detach().cpu().numpy().copy()

    def replace(self, vector: Vector) -> None:
        """Set all weights, in place. Raises ValueError for a vector of another length or type."""
        with torch.no_grad():
            self.weights.copy_(_as_tensor(self.layout.check(vector)))

    def zero_grads(self) -> None:
        """Set all gradients to zero, in place: autograd then adds into the flat vector."""
        self.grads.zero_()


def build_shard(spec: ModelSpec, shard: ShardLayers, vector: Vector | None = None, device: str = "cpu") -> FlatShard:
    """A shard on ``device`` bound to a fresh flat vector, holding ``vector`` if given and zeros otherwise."""
    with torch.device("meta"):
        module = ShardModel(spec, shard)
    module.to_empty(device=device)
    module.model.rotary.fill()
    flat = bind(module, layout_of(spec, shard))
    if vector is None:
        flat.weights.zero_()
    else:
        flat.replace(vector)
    return flat


def bind(module: ShardModel, layout: Layout) -> FlatShard:
    """Make every parameter and gradient of ``module`` a view into flat vectors of ``layout``, keeping the values."""
    parameters = dict(module.named_parameters())
    device = next(iter(parameters.values())).device
    weights = torch.zeros(layout.total, dtype=torch.float32, device=device)
    grads = torch.zeros_like(weights)
    for slot in layout.slots:
        parameter = parameters.pop(slot.name)
        view = weights[slot.start : slot.end].view(slot.shape)
        view.copy_(parameter.detach())
        parameter.data = view
        parameter.grad = grads[slot.start : slot.end].view(slot.shape)
    if parameters:
        raise ValueError(f"the layout has no place for {', '.join(parameters)}")
    return FlatShard(module, layout, weights, grads)


def _as_tensor(array: Vector) -> Tensor:
    """A tensor over the same memory; arrays that must not be written to are copied, as PyTorch can't mark them."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
