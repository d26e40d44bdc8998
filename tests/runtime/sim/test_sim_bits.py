"""Every op gives the CPU's bits and strides on a simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dovetail.runtime import sim

sim.enable()

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
Q = (2, 4, 33, 16)
CASES: dict[str, Case] = {
    "linear": (F.linear, ((3, 37, 64), (48, 64), (48,))),
    "linear without bias": (F.linear, ((3, 37, 64), (48, 64))),
    "matmul of batches": (torch.matmul, ((2, 5, 33, 17), (5, 17, 9))),
    "matmul with a vector": (torch.matmul, ((5, 33, 17), (17,))),
    "matmul of transposed": (lambda a, b: a @ b.transpose(-1, -2), ((4, 33, 64), (4, 21, 64))),
    "bmm": (torch.bmm, ((4, 33, 17), (4, 17, 9))),
    "baddbmm": (lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5, alpha=2), ((4, 33, 9), (4, 33, 17), (4, 17, 9))),
    "addmm": (torch.addmm, ((9,), (33, 17), (17, 9))),
    "einsum of attention": (lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), (Q, Q)),
    "einsum over a wide axis": (lambda a, b: torch.einsum("bct,cd->btd", a, b), ((2, 17, 33), (17, 9))),
    "outer": (torch.outer, ((33,), (17,))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=2), ((3, 17, 9), (17, 9, 5))),
    "attention": (F.scaled_dot_product_attention, (Q, Q, Q)),
    "causal attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, Q, Q)),
    "attention with a mask": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (Q, Q, Q, (2, 1, 33, 33))),
    "attention with a boolean mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0, scale=0.3),
        (Q, Q, Q, (2, 1, 33, 33)),
    ),
    "attention of grouped queries": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (Q, (2, 2, 33, 16), (2, 2, 33, 16)),
    ),
    "attention on transposed heads": (
        lambda x: F.scaled_dot_product_attention(*(x.unflatten(-1, (4, 16)).transpose(1, 2),) * 3).transpose(1, 2),
        ((2, 33, 64),),
    ),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b, 1e-6), ((3, 37, 64), (64,), (64,))),
    "layer_norm without weights": (lambda x: F.layer_norm(x, (64,)), ((3, 37, 64),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (64,), w, 1e-6), ((3, 37, 64), (64,))),
    "rms_norm without weights": (lambda x: F.rms_norm(x, (64,)), ((3, 37, 64),)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), ((2, 16, 9, 11), (16,), (16,))),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v.abs()), ((2, 16, 9, 11), (16,), (16,))),
    "instance_norm": (F.instance_norm, ((2, 16, 9, 11),)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), ((2, 8, 33), (12, 8, 3), (12,))),
    "causal conv1d": (lambda x, w: F.conv1d(F.pad(x, (2, 0)), w), ((2, 8, 33), (12, 8, 3))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), ((2, 8, 17, 19), (12, 8, 3, 3), (12,))),
    "conv2d with padding as a word": (lambda x, w: F.conv2d(x, w, padding="same"), ((2, 8, 17, 19), (12, 8, 3, 3))),
    "conv2d with stride": (lambda x, w: F.conv2d(x, w, stride=2), ((2, 8, 17, 19), (12, 8, 3, 3))),
    "conv2d of one pixel": (F.conv2d, ((2, 8, 17, 19), (12, 8, 1, 1))),
    "depthwise conv2d": (lambda x, w: F.conv2d(x, w, padding=1, groups=8), ((2, 8, 17, 19), (8, 1, 3, 3))),
    "conv2d on channels last": (
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w, padding=1),
        ((2, 8, 17, 19), (12, 8, 3, 3)),
    ),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=1), ((1, 4, 5, 9, 11), (6, 4, 3, 3, 3), (6,))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), ((2, 8, 17), (8, 6, 4))),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2), ((2, 8, 9, 7), (8, 6, 4, 4), (6,))),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w, stride=2), ((1, 4, 3, 5, 5), (4, 6, 2, 2, 2))),
    "unfold": (lambda x: F.unfold(x, 3, padding=1), ((2, 4, 9, 9),)),
    "fold": (lambda x: F.fold(x, (8, 8), 2, stride=2), ((2, 16, 16),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), ((2, 4, 16),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), ((2, 4, 9, 9),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), ((2, 4, 9, 9),)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), ((2, 4, 9),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), ((2, 4, 9, 9),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), ((2, 4, 9),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), ((2, 4, 9, 9),)),
    "nearest in volumes": (lambda x: F.interpolate(x, scale_factor=(1, 2, 2)), ((1, 4, 3, 5, 5),)),
    "bilinear": (lambda x: F.interpolate(x, size=(13, 20), mode="bilinear"), ((2, 4, 9, 9),)),
    "bicubic with antialiasing": (
        lambda x: F.interpolate(x.float(), size=(5, 6), mode="bicubic", antialias=True),
        ((2, 4, 9, 9),),
    ),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), ((2, 4, 9, 9), (2, 5, 5, 2))),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), ((2, 8, 5, 5),)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), ((2, 2, 6, 6),)),
    "pad with reflection": (lambda x: F.pad(x, (1, 2, 1, 2), mode="reflect"), ((2, 4, 9, 9),)),
    "pad by repeating": (lambda x: F.pad(x, (1, 2, 1, 2, 2, 0), mode="replicate"), ((2, 4, 5, 9, 9),)),
    "pad around": (lambda x: F.pad(x, (1, 2), mode="circular"), ((2, 4, 9),)),
    "pad with a constant": (lambda x: F.pad(x, (1, 0, 2, 3), value=0.5), ((2, 4, 9, 9),)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 5], [0, 7]]).to(w.device), w), ((9, 16),)),
    "embedding_bag": (lambda w: F.embedding_bag(torch.tensor([[1, 5], [0, 7]]).to(w.device), w), ((9, 16),)),
    "softmax": (lambda x: F.softmax(x, -1), ((3, 5, 77),)),
    "softmax in another type": (lambda x: F.softmax(x, -1, dtype=torch.float32), ((3, 5, 77),)),
    "log_softmax": (lambda x: F.log_softmax(x, 1), ((3, 5, 77),)),
    "gelu": (F.gelu, ((5, 77),)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), ((5, 77),)),
    "silu and gate": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], ((5, 78),)),
    "glu": (F.glu, ((5, 78),)),
    "mish": (F.mish, ((5, 77),)),
    "prelu": (F.prelu, ((5, 7), (1,))),
    "leaky_relu": (F.leaky_relu, ((5, 77),)),
    "relu6": (F.relu6, ((5, 77),)),
    "elu": (F.elu, ((5, 77),)),
    "hardswish": (F.hardswish, ((5, 77),)),
    "softplus": (F.softplus, ((5, 77),)),
    "logsigmoid": (F.logsigmoid, ((5, 77),)),
    "dropout at rest": (lambda x: F.dropout(x, 0.5, training=False), ((5, 77),)),
    "normalize": (lambda x: F.normalize(x, dim=-1), ((5, 77),)),
    "cosine_similarity": (F.cosine_similarity, ((5, 77), (5, 77))),
    "mse_loss": (F.mse_loss, ((5, 77), (5, 77))),
    "cdist": (lambda a, b: torch.cdist(a.float(), b.float()), ((40, 7), (30, 7))),
    "arithmetic": (lambda a, b: (a * b + 2 * a - b / 3).pow(2).rsqrt(), ((5, 77), (77,))),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.3), ((5, 77), (77,), (5, 1))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((5, 77), (5, 77))),
    "clamp": (lambda a: a.clamp(-0.5, 0.5), ((5, 77),)),
    "where": (lambda a, b: torch.where(a > 0, a, b), ((5, 77), (77,))),
    "masked_fill": (lambda a: a.masked_fill(a > 0, float("-inf")), ((5, 77),)),
    "reductions": (lambda a: [a.sum(), a.mean(-1), a.amax(0), a.std(-1), a.var(0), a.norm()], ((5, 77),)),
    "extrema": (lambda a: [*a.max(-1), *a.min(0), a.argmax(-1)], ((5, 77),)),
    "var_mean": (lambda a: torch.var_mean(a, dim=(1, 2), unbiased=False, keepdim=True), ((3, 5, 77),)),
    "cumsum": (lambda a: a.cumsum(-1), ((5, 77),)),
    "sort": (lambda a: a.sort(-1), ((5, 77),)),
    "topk": (lambda a: a.topk(5), ((5, 77),)),
    "trigonometry": (lambda a: [a.sin(), a.cos(), a.tanh(), a.exp(), a.log1p(), a.sigmoid()], ((5, 77),)),
    "rotary halves": (
        lambda x, c: x * c.cos() + torch.cat((-x[..., 8:], x[..., :8]), -1) * c.sin(),
        (Q, (33, 16)),
    ),
    "rotary pairs": (
        lambda x: torch.view_as_real(
            torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            * torch.polar(torch.ones(33, 8), torch.ones(33, 8)).to(x.device)
        ).flatten(3),
        (Q,),
    ),
    "fourier": (lambda x: torch.fft.ifftn(torch.fft.fftn(x.float(), dim=(-2, -1)), dim=(-2, -1)).real, ((2, 8, 8),)),
    "stft": (
        lambda x: torch.stft(x.float(), 64, window=torch.hann_window(64, device=x.device), return_complex=True),
        ((2, 256),),
    ),
    "reshape of a view": (lambda x: x.transpose(1, 2).reshape(2, -1), ((2, 3, 5),)),
    "views": (
        lambda x: [x.view(6, 5), x.t(), x.unsqueeze(0).expand(3, -1, -1), x[::2], x.diagonal(), x.flatten(), x.mT],
        ((6, 5),),
    ),
    "splits": (lambda x: [*x.chunk(3, -1), *x.split([1, 4], 1), *x.unbind(0), *x.tensor_split(2)], ((3, 5, 9),)),
    "joins": (lambda a, b: [torch.cat([a, b]), torch.stack([a, b]), torch.hstack([a, b])], ((3, 5), (3, 5))),
    "repetition": (lambda x: [x.repeat(2, 1), x.repeat_interleave(3, 0), x.tile(2), x.roll(1, 0)], ((3, 5),)),
    "channels last": (lambda x: x.contiguous(memory_format=torch.channels_last) + 1, ((2, 3, 5, 7),)),
    "meshgrid": (lambda a, b: torch.meshgrid(a, b, indexing="ij"), ((3,), (5,))),
    "indexing": (lambda x: [x[1], x[:, 1:3], x[..., None], x[x > 0], x[[0, 2]], x[:, -1]], ((3, 5),)),
    "gathering": (
        lambda x: [x.gather(1, torch.zeros(3, 2, dtype=torch.long).to(x.device)), x.index_select(0, x[:, 0].argsort())],
        ((3, 5),),
    ),
    "scattering": (lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x), ((3, 5),)),
    "triangles": (lambda x: [x.tril(), x.triu(1)], ((5, 7),)),
    "casts": (lambda x: [x.float(), x.to(torch.bfloat16), x.half(), x.double(), x.int(), x.bool()], ((5, 7),)),
    "time embedding": (
        lambda x: x[:, None].float() * torch.exp(-torch.arange(0, 8, device=x.device, dtype=torch.float32) / 8)[None],
        ((5,),),
    ),
    "factories": (
        lambda x: [
            torch.zeros_like(x), torch.ones(2, 3, device=x.device), torch.full((2,), 3.5, device=x.device),
            torch.arange(1, 9, 2, device=x.device), torch.linspace(0, 1, 7, device=x.device), x.new_zeros(3),
            torch.eye(3, device=x.device), torch.tensor([[1, 2]], device=x.device), torch.rand(2, device=x.device) * 0,
            torch.logspace(0, 1, 5, device=x.device),
            torch.full_like(x, 2), x.new_full((2,), 1), torch.ones((), dtype=torch.bool, device=x.device),
            torch.tril_indices(3, 3, device=x.device), torch.hann_window(9, device=x.device), x.new_tensor([1.0]),
        ],
        ((2, 3),),
    ),
    "linear algebra": (lambda x: [torch.linalg.norm(x.float()), torch.linalg.inv(x.float())], ((5, 5),)),
    "lstm": (
        lambda x, *w: torch.lstm(x, (x.new_zeros(1, 3, 8),) * 2, w, True, 1, 0.0, False, False, False),
        ((5, 3, 6), (32, 6), (32, 8), (32,), (32,)),
    ),
    "weight norm": (lambda v, g: torch._weight_norm(v, g, 0), ((6, 4, 3), (6, 1, 1))),
    "in place": (lambda x: [x.clone().add_(1).mul_(x).relu_(), x.clone().zero_(), x.clone().fill_(3)], ((5, 7),)),
    "in place through indices": (lambda x: x.clone().index_put_((x[:, 0].argsort(),), x), ((5, 7),)),
    "in place through slices": (lambda x: _assign(x.clone()), ((5, 7),)),
}  # fmt: skip


def _assign(x: torch.Tensor) -> torch.Tensor:
    x[1:3] = 0
    x[:, 2] += x[:, 1]
    x[x > 1] = 5.0
    return x


def _flat(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [one for part in result for one in _flat(part)]


def _assert_same(result: Any, expected: Any) -> None:
    assert len(_flat(result)) == len(_flat(expected))
    for one, other in zip(_flat(result), _flat(expected), strict=True):
        assert one.device == torch.device("sim", 0)
        assert (one.dtype, one.shape, one.stride(), one.storage_offset()) == (
            other.dtype, other.shape, other.stride(), other.storage_offset(),
        )  # fmt: skip
        assert torch.equal(one.cpu().nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_an_op_gives_the_bits_and_strides_of_the_cpu(name, dtype, mode):
    function, sizes = CASES[name]
    torch.manual_seed(0)
    values = [torch.randn(size).to(dtype) for size in sizes]
    with mode():
        expected = function(*values)
        _assert_same(function(*(value.to("sim:0") for value in values)), expected)
