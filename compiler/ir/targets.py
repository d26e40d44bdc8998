"""The operations that a program may name: a closed set, so that a plan file is data.

A program comes from a trace, but also from a file that a stranger wrote. So a node's target is never found by following
attributes. It is an operation of the dispatcher in the namespace ``aten`` or ``dovetail`` that computes tensors from
tensors and plain values, or one of the Python functions on numbers in ``FUNCTIONS``.

Of ATen's operations these are left out, by their schema: those without a tensor (they read or set global state),
those that take a storage, a stream, a file name or text that is no named choice, those with an ``out`` argument,
those that change what memory a tensor has, and those whose kernels reach outside their operands' memory where sizes or
indices do not fit. Of those with a private name the ones that a trace meets are listed here.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import ProgramTextError
from . import ops as _ops  # noqa: F401  (programs name its operations)

_OPERATORS = "add sub mul floordiv truediv mod pow neg eq ne lt le gt ge and_ or_ getitem".split()
_SYMBOLIC = "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum".split()

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    **{f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC if hasattr(torch, name)},
}
"""The functions on Python numbers that a trace emits for sizes, and the one that takes an item of several results."""

_NAME = re.compile(r"([A-Za-z]\w*)\.(\w+)\.(\w+)", re.ASCII)
_OWN = frozenset({"aten", "dovetail"})
_TRUSTED: set[str] = set()
_IDS = {id(function): name for name, function in FUNCTIONS.items()}

_TYPES = frozenset({"Tensor", "int", "float", "bool", "number", "complex", "Device", "Generator", "str"})
_CHOICES = frozenset({  # arguments whose text chooses among what a kernel knows
    "UPLO", "approximate", "assert_msg", "driver", "equation", "indexing", "interpolation", "mode", "norm", "ord", "p",
    "pad_mode", "padding", "padding_side", "reduce", "rounding_mode", "side", "quant",
})  # fmt: skip
_CHECKS = frozenset({"_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"})  # they have no tensor
_STATEFUL = re.compile(
    r"resize|^set(_|_data)?$|(?<!^sym_)storage|sparse|smm$|sspaddmm|hspmm|slice_inverse|mkldnn|nested|cudnn|miopen|quantize|^q_|pin_memory|is_pinned|backward|"
    r"record_stream|retain|requires_grad|rename|align_|coalesce|crow_|ccol_|row_indices|col_indices|^values|^indices|"
    r"from_file|^data$|is_set_to|output_nr|is_leaf|fbgemm|mps|choose_qparams|^fake_quant|fused_moving|to_padded|"
    r"as_strided_$|unsafe_.*_tensor|^_?test_|^data_ptr"
)
_UNCHECKED = re.compile(
    r"segment_reduce|ctc_loss|embedding_bag|fractional_max_pool|batch_norm_|native_batch_norm|slow_conv|thnn_conv|"
    r"conv_depthwise3d|convolution_overrideable|flatten_dense_tensors"
)
"""Operations whose kernels do not compare the sizes or indices of their operands with one another."""

_PRIVATE = frozenset(
    """
    __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__
    _adaptive_avg_pool2d _adaptive_avg_pool3d _addmm_activation _aminmax _assert_async _assert_scalar
    _assert_tensor_metadata _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short
    _conj _conj_physical _convolution _convolution_mode _euclidean_dist _fft_c2c _fft_c2r _fft_r2c _fused_rms_norm
    _grouped_mm _int_mm _is_all_true _is_any_true _linalg_det _linalg_eigh _linalg_slogdet _linalg_svd
    _local_scalar_dense _log_softmax _logcumsumexp _native_multi_head_attention _neg_view
    _pad_circular _pad_enum _prelu_kernel _reshape_copy _safe_softmax _scaled_dot_product_attention_math
    _scaled_grouped_mm _scaled_mm _shape_as_tensor _softmax _stack _to_copy
    _transformer_encoder_layer_fwd _trilinear _unique _unique2 _unsafe_index _unsafe_index_put _unsafe_view
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_lanczos2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_int4pack_mm _weight_int8pack_mm _weight_norm
    """.split()
)


def trust(namespace: str) -> None:
    """Admits the operations of a library of your own, such as ``mylib`` for ``torch.ops.mylib``, in this process.

    A plan that names them runs their kernels, so trust only what you would import.
    """
    _TRUSTED.add(namespace)
    find_target.cache_clear()
    name_of.cache_clear()


@cache
def find_target(name: str) -> Any:
    """The operation or function of a name; raises ProgramTextError for one that no program may have."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    problem = f"there is no operation {name[:120]} in torch {torch.__version__}"
    match = _NAME.fullmatch(name)
    if not match or match[1] not in _OWN | _TRUSTED:
        raise ProgramTextError(f"{problem} that a program may have: see docs/text-form.md for those it may")
    namespace, packet, overload = match.groups()
    try:  # asking the dispatcher for one name: a list of all takes it two milliseconds
        torch._C._dispatch_find_schema_or_throw(f"{namespace}::{packet}", "" if overload == "default" else overload)
    except RuntimeError:
        raise ProgramTextError(problem) from None
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    refused = _why_refused(found)
    if refused:
        raise ProgramTextError(f"a program may not have the operation {name}: it {refused}")
    return found


@cache
def bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``FUNCTIONS`` that raises OverflowError where its result has more than 64 bits.

    Python's numbers have no bound, so that a few products of sizes in a plan would take all time and memory.
    """

    def call(*args: Any) -> Any:
        whole = all(isinstance(one, int) for one in args)
        if function is operator.pow and whole and args[0] and args[1] * math.log2(abs(args[0])) > 64:
            raise OverflowError("a power has more than 64 bits")
        found = function(*args)
        if isinstance(found, int) and abs(found) >= 2**64:
            raise OverflowError("a number has more than 64 bits")
        return found

    return call


@cache
def name_of(target: Any) -> str:
    """The name under which ``find_target`` finds an operation; empty for one that no program may have."""
    if id(target) in _IDS:
        return _IDS[id(target)]
    if not isinstance(target, OpOverload):
        return ""
    try:
        return str(target) if find_target(str(target)) is target else ""
    except ProgramTextError:
        return ""


@cache
def argument_names(op: OpOverload) -> frozenset[str]:
    """The names of the arguments that an operation takes."""
    return frozenset(argument.name for argument in op._schema.arguments)


@cache
def yields_number(target: Any) -> bool:
    """Whether an operation yields no tensor: a number, or nothing."""
    if isinstance(target, OpOverload):
        return not any("Tensor" in str(result.type) for result in target._schema.returns)
    return target is not operator.getitem


def _why_refused(op: OpOverload) -> str:
    """What an operation does that keeps it out; empty for one that a program may have."""
    if op.namespace != "aten":
        return ""
    name = op.overloadpacket.__name__
    if name in _CHECKS:
        return ""
    if name.startswith("_") and name not in _PRIVATE and not name.startswith("_foreach_"):
        return "is private to PyTorch"
    if any(argument.is_out for argument in op._schema.arguments):
        return "writes into memory that it may resize"
    if _STATEFUL.search(name):
        return "changes or asks for what memory, state or file a tensor has"
    if _UNCHECKED.search(name) or (
        name.endswith("2d_aa") and op._overloadname != "vec"
    ):  # that makes scales from sizes
        return "does not check the sizes and indices of its operands"
    return _why_schema(op._schema)


def _why_schema(schema: Any) -> str:
    values = [*schema.arguments, *schema.returns]
    for value in values:
        kind = re.sub(r"Optional\[|List\[|\]", "", str(value.type))
        if kind not in _TYPES:
            return f"takes or gives a {kind}"
        if kind == "str" and value.name not in _CHOICES:
            return f"takes the text {value.name}"
    if not any("Tensor" in str(value.type) for value in values):
        return "reads or sets state that is no tensor's"
    return ""
