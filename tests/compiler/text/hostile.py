"""Plans that try to do what a plan must not: what each changes in a good one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail

LEAF = '{"type": null, "context": null, "children_spec": []}'
CANARY = "canary"
"""What hostile plans try to make in the current folder; a test sees whether it is there."""

RUN = f"echo run > {CANARY}"


class Net(nn.Module):
    """Small, and with one of each kind of thing that a plan has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("table", torch.linspace(0, 1, 4), persistent=False)

    def forward(self, x: torch.Tensor, scale: float = 0.5, mode: str = "plain") -> dict[str, Any]:
        for layer in self.layers:
            x = layer(x).relu() * self.table
        left, right = x.chunk(2, dim=-1)
        return {"y": torch.cat([right, left * scale], -1), "mode": mode}


X = torch.ones(3, 4)


def good_plan(folder: Path) -> Path:
    """A plan of ``Net`` over two devices, with a tensor beside it."""
    torch.manual_seed(0)
    dovetail.compile(Net().eval(), (X,), backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB").save(folder / "plan.json")
    return folder / "plan.json"


Lines = list[str]


def before_ops(*lines: str) -> Callable[[Lines], Lines]:
    """Puts ops in front of the first; they run on the first device."""

    def change(program: Lines) -> Lines:
        at = next(index for index, line in enumerate(program) if " = aten." in line)
        return [*program[:at], *(f"{line} @sim0 #0  // layers.0 : Linear : net.py:1" for line in lines), *program[at:]]

    return change


def swap(old: str, new: str) -> Callable[[Lines], Lines]:
    """Writes one text for another, wherever it stands; it must stand somewhere."""

    def change(program: Lines) -> Lines:
        assert any(old in line for line in program), old
        return [line.replace(old, new) for line in program]

    return change


def in_line(start: str, line: str) -> Callable[[Lines], Lines]:
    """Writes another line for the one that begins so."""

    def change(program: Lines) -> Lines:
        assert any(one.startswith(start) for one in program), start
        return [line if one.startswith(start) else one for one in program]

    return change


def tree(kind: str, context: object, children: str = LEAF) -> str:
    return f'[1, {{"type": {json.dumps(kind)}, "context": {json.dumps(context)}, "children_spec": [{children}]}}]'


HOOK = json.dumps({"__enum__": True, "fqn": "hostile_module:X", "name": "a"})
SYSTEM = f'__import__("os").system("{RUN}")'


def said(text: str) -> str:
    """Text as the part of a line after ``//`` has it, so that it is read."""
    return json.dumps(text)[1:-1].replace(":", "\\u003a")


HOSTILE: dict[str, Callable[[Lines], Lines]] = {
    "operator.call reaches os.system": before_ops(
        '%a: number = operator.attrgetter("__class__.split.__globals__")', "%b: number = operator.call(%a, %x)",
        '%c: number = operator.getitem(%b, "__builtins__")', '%d: number = operator.getitem(%c, "__import__")',
        '%e: number = operator.call(%d, "os")', f'%f: number = operator.methodcaller("system", "{RUN}")',
        "%g: number = operator.call(%f, %e)",
    ),
    "a path of attributes from torch.ops": before_ops(
        '%b: number = __init__.__globals__.get("__builtins__")', '%i: number = operator.getitem(%b, "eval")',
    ),
    "a shared library": before_ops('%a: number = load_library.__self__.load_library("canary.so")'),
    "an operation that makes a file": before_ops(f'%a: f32[4]~90 = aten.from_file.default("{CANARY}", true, 4)'),
    "an operation that sets the seed": before_ops("%a: number = aten.manual_seed.default(1)"),
    "an operation that prints": before_ops('%a: number = aten._print.default("x")'),
    "memory exchanged": before_ops("%a: f32[3, 4]~7 = aten.set_.source_Tensor(%x, %b_table)"),
    "memory made larger": before_ops("%a: f32[900000, 900000]~7 = aten.resize_.default(%x, [900000, 900000])"),
    "a tensor in as many parts as it is long": before_ops(
        "%a: f32[1099511627776, 3, 4](0, 4, 1)~7 = aten.expand.default(%x, [1099511627776, 3, 4])",
        "%b: (f32[3, 4]~7) = aten.unbind.int(%a)",
    ),
    "nothing in more parts than memory has bytes": before_ops(
        "%a: f32[0, 4](4, 1)~7 = aten.slice.Tensor(%x, 0, 0, 0)",
        "%b: (f32[0, 4]~7) = aten.chunk.default(%a, 1099511627776)",
    ),
    "a loop over as many steps as a tensor is long": before_ops(
        "%a: f32[1099511627776, 3, 4](0, 4, 1)~90 = aten.expand.default(%x, [1099511627776, 3, 4])",
        "%w: f32[16, 4]~91 = aten.ones.default([16, 4])", "%h: f32[1, 3, 4]~92 = aten.ones.default([1, 3, 4])",
        "%b: (f32[1099511627776, 3, 4]~93, f32[1, 3, 4]~94, f32[1, 3, 4]~95) = aten.lstm.input("
        "%a, [%h, %h], [%w, %w], false, 1, 0.0, false, false, false)",
    ),
    "a result as large as all memory": before_ops("%a: f32[3, 8]~90 = aten.pad.default(%x, [0, 2147483648])"),
    "a module that ends a docstring": swap("// layers.0 :", "// " + said(f'a"""; {SYSTEM}; """b') + " :"),
    "a module that ends a comment": swap("// layers.0 :", "// " + said(f"a\r        {SYSTEM}\r") + " :"),
    "a class that ends a comment": swap(" : Linear : ", " : " + said(f"a\x0c\n        {SYSTEM}\n") + " : "),
    "a source line that ends a comment": swap("hostile.py", "hostile" + said(f"\n        {SYSTEM}\n        ")),
    "a module without its quotes escaped": swap("// layers.0 :", f'// a"""; {SYSTEM}; """b :'),
    "a raw return in a module": swap("// layers.0 :", f"// a\r        {SYSTEM}\r :"),
    "an argument's name that is code": before_ops(f"%a: f32[3, 4]~90 = aten.relu.default(self=%x, {SYSTEM}=1)"),
    "an argument's name that is a keyword": before_ops("%a: f32[3, 4]~90 = aten.relu.default(%x, lambda=1)"),
    "a name that hides the slots": swap("%linear:", "%slots:"),
    "a module that is imported": in_line("returns", f"returns {tree('builtins.dict', HOOK)}"),
    "a hook in an argument": in_line("argument x", f"argument x: tensor as {tree('builtins.dict', HOOK)}"),
    "a factory in a structure": in_line(
        "returns",
        "returns " + tree("collections.defaultdict", json.dumps({"default_factory_module": "hostile_module",
                                                                 "default_factory_name": "X", "dict_context": ["a"]})),
    ),
    "a function as a container": in_line("returns", f"returns {tree('NO_SERIALIZED_TYPE_NAME_FOUND', '1')}"),
    "a structure without end": in_line("returns", "returns [1, " + '{"type": "builtins.list", "context": "null", '
                                       '"children_spec": [' * 9000),
    "a deep structure": in_line("returns", "returns [1, " + '{"type": "builtins.list", "context": "null", '
                                '"children_spec": [' * 900 + LEAF + "]}" * 900 + "]"),
    "a power": swap("f32[3, 4]~7", "f32[9**9**9**9, 4]~7"),
    "a power of powers": swap("f32[3, 4]~7", f"f32[{'**'.join(['9'] * 200)}, 4]~7"),
    "a long product": swap("f32[3, 4]~7", f"f32[{'*'.join(['9' * 18] * 50)}, 4]~7"),
    "a deep expression": swap("f32[3, 4]~7", f"f32[{'-' * 900}3, 4]~7"),
    "deep parentheses in a size": swap("f32[3, 4]~7", f"f32[{'(' * 400}3{')' * 400}, 4]~7"),
    "a size that is a call": swap("f32[3, 4]~7", f"f32[{SYSTEM}, 4]~7"),
    "a size of many digits": swap("f32[3, 4]~7", f"f32[{'9' * 9000}, 4]~7"),
    "a large size": swap("f32[3, 4]~7", "f32[4611686018427387904, 4]~7"),
    "a size below nothing": swap("f32[3, 4]~7", "f32[-3, 4]~7"),
    "a huge constant": before_ops("%a: f32[99999999999]~90 = aten.full.default([99999999999], 1, dtype=f32)"),
    "numbers that grow": before_ops(
        "%a0: number = operator.pow(9, 20)", *(f"%a{i + 1}: number = operator.mul(%a{i}, %a{i})" for i in range(60)),
    ),
    "a power of numbers": before_ops("%a: number = operator.pow(9, 999999999)"),
    "a power of large numbers": before_ops("%a: number = operator.pow(1000003, 3000000)"),
    "a list that is multiplied": before_ops("%a: number = operator.mul([0], 99999999999)"),
    "results that are multiplied": before_ops(
        "%a: (f32[3, 2]~7, f32[3, 2]~7) = aten.chunk.default(%x, 2, 1)", "%b: number = operator.mul(%a, 99999999999)",
    ),
    "a shift": before_ops("%a: number = operator.lshift(1, 99999999999)"),
    "deep brackets": before_ops(f"%a: f32[3, 4]~90 = aten.relu.default({'[' * 5000}%x{']' * 5000})"),
    "deep results": in_line("return ", f"return {'[' * 5000}%cat{']' * 5000}"),
    "deep defaults": in_line("takes", f'takes ["x"] defaults {{"x": {"[" * 5000}{"]" * 5000}}}'),
    "defaults that are code": in_line("takes", f'takes ["x"] defaults {{"x": {SYSTEM}}}'),
    "a method of the reader": lambda program: [*program[:-1], "_reader__class__ x", program[-1]],
    "a weight of another size": swap("f32[4, 4]~0 = parameter", "f32[99999999, 99999999]~0 = parameter"),
    "a packed weight of no size": swap('parameter "layers.0.weight"', 'parameter "layers.0.weight" packed Q4_K f32[9]'),
    "a device out of nowhere": swap("@sim1", "@sim7"),
    "a segment out of nowhere": swap("#1", "#9999999"),
    "facts that hide the rules": in_line("facts", "facts cut"),
    "a guard over nothing": lambda program: [*program[:4], "symbol s = 2 in 1..4", "guard s == 2", *program[4:]],
    "a guard that is code": lambda program: [*program[:4], f"guard {SYSTEM} == 0", *program[4:]],
    "many sizes": swap("f32[3, 4]~7", f"f32[{', '.join(['1'] * 9000)}]~7"),
    "a nan for a share": lambda program: [program[0], "shares nan:nan", *program[1:]],
}  # fmt: skip


def write(plan: Path, program: Lines) -> None:
    """Puts another program in a plan file."""
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "program": program}))


def read(plan: Path) -> Lines:
    """The program's lines in a plan file."""
    return json.loads(plan.read_text())["program"]  # type: ignore[no-any-return]
