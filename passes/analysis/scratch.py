"""How many bytes an operation takes while it runs, besides its operands and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Node

from ...compiler.checkpoints import unpacking
from ...compiler.devices.device import Device
from ...compiler.ir import ops as _ops  # noqa: F401  (registers the operations named below)
from ...compiler.ir.aliasing import argument_of, overwrites
from ...compiler.ir.layouts import is_settled
from ...compiler.ir.ops import (
    CAUSAL_ATTENTION_OF_ROWS,
    COMBINED_STATISTICS,
    GROUP_NORM_BY,
    GROUP_STATISTICS,
    ROW_STATISTICS,
    SUM_TERMS,
    adding_dtype,
    statistics_dtype,
)
from ...compiler.ir.program import Program, tensors_of, weight_name
from ...compiler.ir.split import is_shared, type_on
from ...compiler.ir.value import TensorType, flat
from ...compiler.states.parts import call_on, weight_on

_PACKED = torch.ops.dovetail
_UNPACKING = frozenset(
    {_PACKED.quantized_linear.default, _PACKED.quantized_embedding.default, _PACKED.dequantize.default}
)

_GROUP_NORMS = frozenset({GROUP_STATISTICS, GROUP_NORM_BY})

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_CONVOLUTIONS = frozenset({torch.ops.aten.conv2d.default, torch.ops.aten.conv3d.default})


def scratch_bytes(program: Program, node: Node, device: Device) -> int:
    """The bytes that an operation takes on a device beside operands and result; 0 where it takes none.

    An operation on a packed weight unpacks some of it at a time, at least this much, and more where there is room.
    Attention on the host has a number for PyTorch's kernels, and so have convolutions on CUDA; no other operation of an
    accelerator is known here.
    """
    if node.target in _UNPACKING:
        return _unpacked(program, node, device)
    if node.target is SUM_TERMS:
        return _wide_sum(node, device)
    if node.target in _GROUP_NORMS:
        return _group_norm(node, device)
    if node.target in (ROW_STATISTICS, COMBINED_STATISTICS):
        return _statistics(node, device)
    if node.target is _ATTENTION:
        return _mask_of_rows(node, device) + (_attention(node) if device.is_host else 0)
    if node.target in _CONVOLUTIONS and device.kind == "cuda":
        return _operands_and_result(node, device)
    return 0


def _wide_sum(node: Node, device: Device) -> int:
    """Short floats are added in float32, and rounded then; the host makes each term one of these first."""
    terms, (made,) = node.args[0], flat(type_on(node, device))
    assert isinstance(terms, Node)
    dtype = tensors_of(terms)[0].dtype
    wide = adding_dtype(dtype)
    total = made.nbytes // made.dtype.itemsize * wide.itemsize
    adding = total * (2 if device.is_host and dtype != wide else 1)
    rounding = total + made.nbytes * (made.dtype != wide)
    return max(adding, rounding) - made.nbytes


def _group_norm(node: Node, device: Device) -> int:
    """What kernels of group norms by parts take (`runtime/norm_statistics`): exact, but on the host for a few numbers.

    What cannot be seen in rows is copied once; of short floats a group at a time is copied in longer ones.
    """
    x, groups = node.args[0], int(argument_of(node, "groups"))
    assert isinstance(x, Node)
    (part,) = flat(type_on(x, device))
    pictures, channels, *_ = part.sizes
    count, itemsize = math.prod(part.sizes), statistics_dtype(part.dtype).itemsize
    if not count:
        return 0
    rows = (1, pictures * channels, -1) if node.target is GROUP_NORM_BY else (pictures, groups, -1)
    copied = 0 if _is_view(part, rows) else part.nbytes
    is_short = part.dtype.itemsize < itemsize
    if node.target is GROUP_STATISTICS:
        at_once = 1 if is_short else groups
        return copied + 2 * pictures * at_once * itemsize + (count // groups * itemsize if is_short else 0)
    known, at_once, beside = 4 * pictures * channels * itemsize, pictures, copied
    if copied and part.stride[1] == 1:  # channels last: one picture after another
        at_once, beside = 1, part.nbytes // pictures if pictures > 1 else 0
    return known + beside + (known * at_once // pictures // 2 if device.is_host else 0)


def _statistics(node: Node, device: Device) -> int:
    """A variance and a mean of each row; of what is combined, a few numbers at a time of what two parts have."""
    x = node.args[0]
    assert isinstance(x, Node)
    (part,) = flat(type_on(x, device))
    itemsize = statistics_dtype(part.dtype).itemsize
    if node.target is COMBINED_STATISTICS:
        return math.prod(part.sizes[1:-1]) * itemsize * (4 if part.sizes[0] > 1 else 1)
    longer = math.prod(part.sizes) * itemsize if part.dtype.itemsize < itemsize else 0
    return 2 * math.prod(part.sizes[:-1]) * itemsize + longer if math.prod(part.sizes) else 0


def _operands_and_result(node: Node, device: Device) -> int:
    """What a convolution on CUDA copies: its operands and its result, into the layout of its kernel (cuDNN).

    Measured on an H200 in bfloat16, float16 and float32 (which goes to such kernels too, rounded to TF32): so much, to
    2 MiB, and nothing where the weight is channels-last, or where the kernel is one number wide. What layout the input
    has is not asked: of one picture a trace may say another one than a card gives.
    """
    x, weight = node.args[:2]
    assert isinstance(x, Node)
    assert isinstance(weight, Node)
    parts = [part for one in (x, weight, node) for part in flat(type_on(one, device))]
    kernel, is_grouped = parts[1], int(argument_of(node, "groups")) > 1
    is_last = kernel.stride[1] == 1 < kernel.sizes[1]
    if is_grouped or is_last or math.prod(kernel.sizes[2:]) == 1 or kernel.dtype == torch.float64:
        return 0
    return sum(part.nbytes for part in parts)


def _is_view(part: TensorType, shape: Sequence[int]) -> bool:
    """Whether a tensor can be seen in another shape without a copy."""
    try:
        torch.empty_strided(part.sizes, part.stride, device="meta").view(shape)  # type: ignore[arg-type]
    except RuntimeError:
        return False
    return True


def apart_bytes(program: Program, node: Node, device: Device) -> int:
    """The bytes of a result that the first call computes on a device apart from the operand whose memory it may take.

    So it does where the strides of the trace do not settle that the result is laid out as the operand is.
    """
    if not overwrites(node) or is_settled(program, node, device):
        return 0
    return sum(tensor.nbytes for tensor in flat(type_on(node, device)))


def _unpacked(program: Program, node: Node, device: Device) -> int:
    weights = (weight_on(program, node, read, device) for read in node.all_input_nodes if weight_name(read))
    weight = next((weight for weight in weights if weight.quant), None)
    if weight is None:
        return 0
    columns, sizes = weight.shape[-1], unpacking.sizes_on(device.is_host, room=0)
    itemsize = tensors_of(node)[0].dtype.itemsize
    return unpacking.scratch_bytes(weight.quant, math.prod(weight.shape[:-1]), columns, itemsize, sizes)


def _mask_of_rows(node: Node, device: Device) -> int:
    """A byte for each key of each query that a device has of a causal attention, where it has some of these."""
    if not is_shared(node) or call_on(node, device)[0] is not CAUSAL_ATTENTION_OF_ROWS:
        return 0
    (part,), (key,) = flat(type_on(node, device)), tensors_of(node.args[1])  # type: ignore[arg-type]
    return part.sizes[-2] * key.sizes[-2]


def _attention(node: Node) -> int:
    """What attention takes on the host: exact for the kernel that goes by blocks, an upper bound for the other one."""
    operands = [tensors_of(one)[0] for one in node.args[:4] if isinstance(one, Node)]
    query, key, value, *masks = operands
    floats = [mask for mask in masks if mask.dtype == torch.bool]  # which are made numbers first
    nbytes = sum(math.prod(mask.sizes) * query.dtype.itemsize for mask in floats)
    dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0)
    if len(query.sizes) == 4 and query.sizes[-1] == value.sizes[-1] and not dropout:
        return nbytes + _by_blocks(query, key)
    scores = math.prod(query.sizes[:-1]) * key.sizes[-2]
    return nbytes + 4 * (3 * scores + 2 * sum(math.prod(one.sizes) for one in (query, key, value)))


def _by_blocks(query: TensorType, key: TensorType) -> int:
    """A block of scores and of results a thread, in float32, and a sum a row (ATen's FlashAttentionKernel).

    In a shorter dtype a block of scores is also held in that dtype. Where the host multiplies tiles of it (AMX), keys
    and values are packed first, if that is little beside what they are multiplied with.
    """
    *batch, rows, width = query.sizes
    keys, heads, threads = key.sizes[-2], math.prod(batch), torch.get_num_threads()
    columns = min(512, keys)
    block = min(256 if rows >= 768 else 64 if rows >= 192 else 32, rows)
    wide = 8 if query.dtype == torch.float64 else 4
    short = query.dtype.itemsize if query.dtype.itemsize < 4 else 0
    blocks = -(-heads * -(-rows // block) // threads)  # a thread
    packs = _has_tiles(query.dtype) and min(rows, keys) >= 64 and blocks * block >= 4 * heads
    thread = wide * block * (columns + 2 + width) + short * block * (_even(columns) if packs else columns)
    if not packs:
        return threads * thread + heads * rows * wide
    padded = (keys - 1) // columns * _even(columns) + _even((keys - 1) % columns + 1)
    packed = heads * (_even(width) * keys + padded * width)
    thread += short * (columns * width + (block * _even(width) if width % 2 else 0))
    return threads * thread + heads * rows * wide + short * packed


def _even(size: int) -> int:
    return size + size % 2


def _has_tiles(dtype: torch.dtype) -> bool:
    """Whether this host multiplies tiles of a dtype, and may."""
    if not torch.backends.mkldnn.enabled:
        return False
    has = {torch.bfloat16: torch.cpu._is_amx_tile_supported, torch.float16: torch.cpu._is_amx_fp16_supported}
    return dtype in has and has[dtype]()
