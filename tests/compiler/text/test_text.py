"""The text form of a program, and reading it back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import ProgramTextError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.split import split_of
from dovetail.compiler.ir.state import Split
from dovetail.compiler.states.parts import pieces
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.compiler.text.spelling import show_argument


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
        self.register_buffer("table", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor, flag: bool = True) -> Any:
        left, right = self.layers[0](x).chunk(2, dim=-1)
        return {"y": self.layers[1](torch.cat([right, left * math.inf], -1)) + self.table, "flag": flag}


GOLDEN = """\
program "Gate"
passes simplify, quantize, blocks, lora, place, pin, hoist, sink, cut, reuse, reorder
facts blocks found, cut, memory reused, pinned, placed, quantized
devices sim0=1GiB,sim1=1GiB
takes ["x", "flag"] defaults {"flag": true}
argument flag: = true
argument x: tensor
returns [1, {"type": "builtins.dict", "context": "[\\"y\\", \\"flag\\"]", "children_spec": [LEAF, LEAF]}]
block "layers.0"  // 1 weights, 64 bytes
block "layers.1"  // 1 weights, 64 bytes
%p_layers_0_weight: f32[4, 4]~0 = parameter "layers.0.weight" in "layers.0" @sim0  // not eligible: a side below 256: 4
%p_layers_1_weight: f32[4, 4]~1 = parameter "layers.1.weight" in "layers.1" @sim1  // not eligible: a side below 256: 4
%b_table: f32[4]~2 = buffer "table" transient @sim0  // not eligible: 1-D
%x: f32[3, 4]~3 = input @sim0
%linear: f32[3, 4]~4 = aten.linear.default(%x, %p_layers_0_weight) @sim0 #0  // layers.0 : Linear : FILE
%chunk: (f32[3, 2](4, 1)~4, f32[3, 2](4, 1)~4) = aten.chunk.default(%linear, 2, -1) @sim0 #0  //  : Gate : FILE
%getitem: f32[3, 2](4, 1)~4 = operator.getitem(%chunk, 0) @sim0 #0  //  : Gate : FILE
%getitem_1: f32[3, 2](4, 1)~4 = operator.getitem(%chunk, 1) @sim0 #0  //  : Gate : FILE
%mul: f32[3, 2]~5 = aten.mul.Tensor(%getitem, float inf) @sim0 #0  //  : Gate : FILE
%cat: f32[3, 4]~6 = aten.cat.default([%getitem_1, %mul], -1) @sim0 #0  //  : Gate : FILE
%cat_on_sim1: f32[3, 4]~9 = dovetail.transfer.default(%cat, device=here) @sim1
%linear_1: f32[3, 4]~7 = aten.linear.default(%cat_on_sim1, %p_layers_1_weight) @sim1 #1  // layers.1 : Linear : FILE
%add: f32[3, 4]~8 = aten.add.Tensor(%linear_1, %b_table) @sim1 #1  //  : Gate : FILE
%add_on_sim0: f32[3, 4]~10 = dovetail.transfer.default(%add, device=here) @sim0
return [%add_on_sim0, true]
"""


def compiled_text(**options: Any) -> str:
    options = {"backend": "sim0&sim1", "rig": "sim0=1GiB,sim1=1GiB", **options}
    return str(dovetail.compile(Gate(), (torch.ones(3, 4),), **options))


def test_a_compiled_program_prints_as_this_text() -> None:
    import re

    leaf = '{"type": null, "context": null, "children_spec": []}'
    shown = re.sub(r"[\w/]*test_text\.py:\d+", "FILE", compiled_text()).replace(leaf, "LEAF")
    assert shown == GOLDEN


@pytest.mark.parametrize("passes", ["simplify", "simplify,blocks,place", "simplify,blocks,place{shares=1:3},pin", None])
def test_what_is_printed_is_read_back_at_every_stage(passes: str | None) -> None:
    text = compiled_text(passes=passes)
    assert print_program(parse_program(text)) == text


RESTING = """\
program "Slices"
passes place
facts pinned, placed
devices sim0=512MiB,sim1=512MiB
takes ["x"] defaults {}
argument x: tensor
returns [1, {"type": null, "context": null, "children_spec": []}]
block "layers.0"  // 3 weights, 139272 bytes
%w: u8[384, 272]~0 = parameter "a.w" alias "tied" rows 0:128, 128:384 packed Q8_0 bf16[384, 256] eligible in "layers.0"
%a: bf16[256, 68]~1 = adapter "layers.0.weight.up" in "layers.0" @sim0  // not eligible: of an adapter
%s: number = adapter "layers.0.weight.scale" in "layers.0" @sim0  // not eligible: of an adapter
%x: bf16[3, 256]~2 = input @sim0
%linear: bf16[3, 384]~3 = dovetail.quantized_linear.default(%x, %w, none, "Q8_0") @sim0+sim1 split 1 [0:128, 128:384]
%mul: bf16[3, 384]~4 = aten.mul.Tensor(%linear, %s) @sim0+sim1 split 1 [0:128, 128:384]
return [%mul]
"""


def test_slices_and_packed_weights_and_adapters_are_read_back() -> None:
    program = parse_program(RESTING)
    assert print_program(program) == RESTING
    assert program.bounds == {"a.w": ((0, 128), (128, 384))}
    assert split_of(next(program.ops())) == Split(1, (((0, 128), (128, 384)),))
    packed, device = pieces(program)["a.w[128:384]"]
    assert str(device) == "sim1"
    assert (packed.which, packed.quant, packed.shape) == (Part(0, ((128, 384),)), "Q8_0", (256, 256))
    assert packed.names == ("a.w", "tied")
    assert packed.nbytes == 256 * 272


def test_a_dynamic_program_is_read_back() -> None:
    program = trace(Gate(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=9)}})
    text = print_program(program)
    assert "symbol " in text
    again = parse_program(text)
    assert print_program(again) == text
    assert again.signature == program.signature or again.signature.leaves == program.signature.leaves


@pytest.mark.parametrize(
    "value",
    [None, True, False, 3, -7, 0.5, -1e-6, 1e30, math.inf, -math.inf, "a \"b\" \\ c", torch.bfloat16, torch.bool,
     torch.strided, torch.channels_last, torch.device("cpu"), [1, [2.0, None]], complex(1, -2), slice(0, None, 2)],
)  # fmt: skip
def test_each_kind_of_argument_is_read_back(value: Any) -> None:
    from dovetail.compiler.text.tokens import Line

    assert Line(show_argument(value)).argument({}) == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%a: f32[2]~0 = aten.nothing.default()", "no operation aten.nothing.default"),
        ("%a: f32[2]~0 = os.system(\"ls\")", "no operation os.system"),
        ("%a: f32[2]~0 = aten.add.Tensor(%missing, 1)", "missing"),
        ("%a: q32[2]~0 = input", "q32"),
        ("%a: f32[2]~0 = input\n%a: f32[2]~0 = input", "twice"),
        ("rubbish", "rubbish"),
        ("%a: f32[2]~0 = aten.relu.default(", "found the end"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(line: str, words: str) -> None:
    with pytest.raises(ProgramTextError, match=words):
        parse_program(f'program "P"\n{line}\nreturn []\n')


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(ProgramTextError):
        parse_program("")
