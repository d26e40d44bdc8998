"""The kernel of ``dovetail.causal_attention_of_rows``: attention with a mask that says which keys come before a row.

It reads all keys, also those that no row sees: so kernels go by the blocks of keys by which they go for the whole, and
on the host the rows have the bits that they have there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..compiler.ir.ops import LIBRARY


def _attend(
    query: Tensor, key: Tensor, value: Tensor, first: int, *, scale: float | None = None, enable_gqa: bool = False
) -> Tensor:
    mask = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device=query.device).tril_(first)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )


LIBRARY.impl("causal_attention_of_rows", _attend, "CompositeExplicitAutograd")
