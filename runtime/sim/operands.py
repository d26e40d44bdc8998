"""Which ops take CPU tensors without dimensions beside tensors of a device, as CUDA's kernels do."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

_ALSO = frozenset(
    (
        "bernoulli", "binary_cross_entropy", "binary_cross_entropy_with_logits", "dist", "fill", "index_fill",
        "index_put", "_index_put_impl", "_unsafe_index_put", "linspace", "logspace", "masked_fill", "mse_loss",
        "smooth_l1_loss",
    )
)  # fmt: skip


def takes_host_scalars(func: OpOverload) -> bool:
    """Says whether an op takes CPU tensors without dimensions beside those of a device.

    Elementwise ops do, and so do those that are made of others, which decide for themselves. Ops of other libraries
    are let be.
    """
    namespace, _, name = func._schema.name.partition("::")
    name = name.rstrip("_") or name
    if namespace != "aten" or name in _ALSO or name.startswith("_foreach_"):
        return True
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return True
    packet = getattr(torch.ops.aten, name, None)
    overloads = [func] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)
