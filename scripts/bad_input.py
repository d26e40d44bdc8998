"""What wrong input gets: `python -m scripts.bad_input > docs/errors.md` runs every case and writes the page."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import dovetail
from dovetail import demo
from dovetail.cli.app import app
from dovetail.compiler.errors import DovetailError
from dovetail.convert import plan_conversion
from dovetail.passes.fit.ways_out import FITS

ROOT = Path(__file__).resolve().parent.parent
INTRODUCTION = """# Errors

An error says what was asked, what is there, and the way out. It goes to stderr, and the exit code tells its kind:

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: a file is damaged, a model cannot be traced, the disk is full |
| 2 | what was typed is wrong: an option, a name, a file that is not there or is of another kind |
| 3 | does not fit into the memory there is |
| 4 | a placement breaks a rule |
| 130 | interrupted; 143 terminated, 129 hung up |

There is no traceback unless `--debug` asks for one. In Python every error is a `dovetail.compiler.errors.DovetailError`
with the same message, and its `exit_code`.

`python -m scripts.bad_input` typed everything below, and wrote down what came back.
"""
RIG = "--rig cuda0=24GiB,cuda1=16GiB"


@dataclass(frozen=True)
class Answer:
    """What came back: an exit code and a message."""

    code: int
    message: str


@dataclass(frozen=True)
class Case:
    """One wrong input: what it is about, as it is typed, and the exit code that it deserves."""

    about: str
    typed: str
    code: int
    call: Callable[[], object] | None = None

    def run(self) -> Answer:
        """Runs it in the current folder: a command line, or a call from Python."""
        return self._from_python(self.call) if self.call else self._from_shell()

    def _from_shell(self) -> Answer:
        result = CliRunner().invoke(app, shlex.split(self.typed)[1:])
        lines = [line for line in result.stderr.splitlines() if not line.endswith(" s so far")]  # progress, if slow
        return Answer(result.exit_code, "\n".join(lines).strip())

    def _from_python(self, call: Callable[[], object]) -> Answer:
        try:
            call()
        except DovetailError as error:
            return Answer(error.exit_code, f"{type(error).__name__}: {error}")
        return Answer(0, "")


class Branching(torch.nn.Module):
    """A module whose way depends on the values of its input, which no trace can follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Doubles positive sums only."""
        return x * 2 if x.sum() > 0 else x


def _linear() -> dovetail.CompiledModule:
    return dovetail.compile(torch.nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0")


def _move() -> object:
    return dovetail.load_pipeline(demo.folder(), backend="sim0").to("cpu")


def _save_and_load() -> object:
    _linear().save("linear.json")
    return dovetail.load("linear.json")(torch.ones(1, 4))


def _branch() -> object:
    return dovetail.compile(Branching(), (torch.ones(2, device="meta"),))


def _wrong_shape() -> object:
    return dovetail.compile(torch.nn.Linear(4, 4), (torch.ones(1, 3),))


def _twice() -> object:
    return dovetail.compile(torch.nn.Linear(4, 4), (torch.ones(1, 4),), {"input": torch.ones(1, 4)})


CASES = (
    Case("spec", "dovetail generate x --backend te=cpu,difusion=cpu", 2),
    Case("spec", "dovetail generate x --backend 'sim0&sim1&sim0'", 2),
    Case("spec", "dovetail generate x --backend 'diffusion=auto&sim0'", 2),
    Case("spec", "dovetail generate x --backend vae=disk", 2),
    Case("spec", "dovetail generate x --split-mode rows", 2),
    Case("spec", "dovetail generate x --split-mode diffusion=sequence --bf16-partials", 2),
    Case("spec", "dovetail plan --split-mode tensor --backend 'cuda0&cpu' --rig cuda0=24GiB,cpu=64GiB", 2),
    Case("spec", "dovetail generate x --params-backend 'te=sim0&disk'", 2),
    Case("spec", f"dovetail compile --params-backend te=disc {RIG}", 2),
    Case("spec", "dovetail generate x --tensor-split 3,x", 2),
    Case("spec", "dovetail generate x --max-vram cuda0=6GX", 2),
    Case("spec", "dovetail generate x --max-vram 120%", 2),
    Case("spec", "dovetail compile --passes simplify,plaice", 2),
    Case("spec", "dovetail compile --passes pin,place", 2),
    Case("spec", "dovetail plan --backend sim0+sim1 --tensor-split diffusion=3,1", 2),
    Case("device", f"dovetail compile --backend cuda7 {RIG}", 2),
    Case("device", "dovetail devices --rig cuda0", 2),
    Case("device", "dovetail devices --rig cuda0=24GiB,cuda:0=16GiB", 2),
    Case("device", f"dovetail generate x --backend 'diffusion=cuda0&cuda1' {RIG}", 1),
    Case("device", "dovetail compile --component transformer --backend 'sim0&sim1' --rig sim0=256KiB,sim1=256KiB", 3),
    Case("file", "dovetail generate x --model missing", 2),
    Case("file", "dovetail generate x --model empty", 2),
    Case("file", "dovetail generate x -o missing/out.png", 2),
    Case("file", "dovetail generate x -o out.txt", 2),
    Case("file", "dovetail show missing.json", 2),
    Case("file", "dovetail show notes.json", 2),
    Case("file", "dovetail show cut.json", 1),
    Case("file", "dovetail show lacking.json", 1),
    Case("file", "dovetail plan edited.json", 2),
    Case("file", "dovetail generate x --model damaged/vae", 2),
    Case("file", "dovetail generate x --model missing.safetensors", 2),
    Case("file", "dovetail generate x --model old.ckpt", 2),
    Case("file", "dovetail plan damaged --config damaged", 2),
    Case("file", "dovetail verify edited.json", 4),
    Case("file", "dovetail generate x --model damaged", 1),
    Case("convert", "dovetail convert weights.safetensors -o out.gguf --type q4_k_m", 2),
    Case("convert", "dovetail convert weights.safetensors -o out.safetensors --type q4_k", 2),
    Case("convert", "dovetail convert weights.safetensors -o weights.safetensors --type f16", 2),
    Case("convert", "dovetail convert weights.safetensors -o out.gguf --type q8_0 --tensor-type attn=q4_k", 2),
    Case("convert", "dovetail convert damaged -o out.gguf --type q8_0", 2),
    Case("convert", "dovetail convert empty -o out.gguf --type q8_0", 2),
    Case("convert", "dovetail convert missing.gguf -o out.gguf --type q8_0", 2),
    Case("convert", "dovetail convert weights.safetensors -o missing/out.gguf --type q8_0", 2),
    Case("convert", "dovetail convert weights.safetensors -o out.gguf --type q8_0", 1),
    Case("convert", "dovetail convert short.gguf -o out.gguf --type q8_0", 1),
    Case("convert", "dovetail convert lying.safetensors -o out.gguf --type q8_0", 1),
    Case("quant", "dovetail plan --quant transformer=q9_0", 2),
    Case("quant", "dovetail plan --quant transformer", 2),
    Case("quant", "dovetail plan --quant upscaler=q8_0", 2),
    Case("quant", "dovetail plan --quant transformer=q8_0,transformer=f8", 2),
    Case("lora", "dovetail generate x --lora blue:much", 2),
    Case("lora", "dovetail generate x --lora purple:0.5", 2),
    Case("lora", "dovetail generate x --lora short.gguf", 2),
    Case("lora", "dovetail generate x --lora old.bin", 2),
    Case("lora", "dovetail generate x --lora weights.safetensors", 2),
    Case("list", "dovetail generate --prompts-file missing.txt", 2),
    Case("list", "dovetail generate x --replicas 2", 2),
    Case("list", "dovetail generate --prompts-file prompts.jsonl --num-images 2", 2),
    Case("list", "dovetail generate --prompts-file prompts.txt --replicas some", 2),
    Case("list", "dovetail generate --prompts-file prompts.txt --replicas 3 --backend sim0+sim1", 2),
    Case("list", "dovetail generate --prompts-file prompts.txt --replicas auto --backend te=sim0,vae=sim1", 2),
    Case("list", "dovetail generate --prompts-file prompts.jsonl", 1),
    Case("list", "dovetail generate --prompts-file prompts.jsonl -o done.png --dtype bf16", 2),
    Case("call", "dovetail generate x --size 64x64x64", 2),
    Case("call", "dovetail generate x --frames 8", 2),
    Case("call", "compiled(torch.ones(2, 4))  # traced with 1 × 4", 1, lambda: _linear()(torch.ones(2, 4))),
    Case("call", "compiled(torch.ones(1, 4, dtype=torch.half))", 1, lambda: _linear()(torch.ones(1, 4).half())),
    Case("call", "dovetail.compile(branching, (x,))  # x is on meta", 1, _branch),
    Case("call", "dovetail.compile(linear)", 2, lambda: dovetail.compile(torch.nn.Linear(4, 4))),
    Case("call", "dovetail.compile(linear, (torch.ones(1, 3),))  # it takes 1 × 4", 1, _wrong_shape),
    Case("call", "dovetail.compile(linear, (x,), {'input': x})", 2, _twice),
    Case("call", "pipe.to('cpu')  # pipe is compiled", 2, _move),
    Case("call", "dovetail.load('linear.json')(x)  # without weights", 1, _save_and_load),
)


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder, made the current one, with the files that the cases name."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            Path("empty").mkdir()
            Path("notes.json").write_text('{"shopping": ["milk"]}')
            _write_a_list()
            _edit_a_plan()
            _damage_a_pipeline()
            _damage_weights()
            yield Path(name)
        finally:
            os.chdir(before)


def _write_a_list() -> None:
    """Writes a list of prompts, one whose only line is wrong, and what is done of another one."""
    Path("prompts.txt").write_text("a cat")
    Path("prompts.jsonl").write_text('{"promt": "a cat"}')
    Path("done.png").touch()
    done = {"of": "of another job", "files": ["done.png"]}
    Path("done.jobs.json").write_text(json.dumps({"version": 1, "options": {}, "seed": 0, "lines": {"1": done}}))


def _edit_a_plan() -> None:
    """Writes a plan in which somebody moved one operation to another device by hand."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    dovetail.compile(layers, (torch.ones(1, 4),), backend="sim0&sim1").save("edited.json")
    plan = json.loads(Path("edited.json").read_text())
    moved = max(i for i, line in enumerate(plan["program"]) if "@sim1 #" in line)
    plan["program"][moved] = plan["program"][moved].replace("@sim1 #", "@sim0 #")
    Path("edited.json").write_text(json.dumps(plan))
    lines = json.dumps(plan, indent=1).splitlines(keepends=True)
    Path("cut.json").write_text("".join(lines[:8]))  # the lines are longer on some machines
    Path("lacking.json").write_text(json.dumps({**plan, "program": None}))


def _damage_a_pipeline() -> None:
    """Copies the demo, and cuts off the end of its largest file."""
    shutil.copytree(demo.folder(), "damaged")
    largest = max(Path("damaged").rglob("*.safetensors"), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def _damage_weights() -> None:
    """Writes weights of which one is not a number, a GGUF file that was cut short, a pickle, and a header that lies."""
    weight = torch.ones(256, 256)
    weight[7, 7] = float("nan")
    save_file({"blocks.0.mlp.weight": weight}, "weights.safetensors")
    plan_conversion("weights.safetensors", "short.gguf", "f16").run()
    os.truncate("short.gguf", 1000)
    torch.save({"a": weight}, "old.bin")
    shutil.copy("old.bin", "old.ckpt")
    header = b'{"a": {"dtype": "F32", "shape": [1000000, 1000000], "data_offsets": [0, 4]}}'
    Path("lying.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def answers() -> list[tuple[Case, Answer]]:
    """Every case with what came back."""
    with workplace():
        return [(case, case.run()) for case in CASES]


def page(answered: Sequence[tuple[Case, Answer]]) -> str:
    """The page of documentation: a table of all cases, and then every message that has several lines in full."""
    lines = [INTRODUCTION, "| wrong | typed | exit code | message |", "|---|---|---|---|"]
    for case, answer in answered:
        first = _short(answer.message)
        lines.append(f"| {case.about} | {_cell(case.typed)} | {answer.code} | {_cell(first)} |")
    lines += ["", "## The longer messages in full"]
    for case, answer in answered:
        if "\n" in answer.message and "File " not in answer.message and FITS not in answer.message:
            lines += ["", "```text", f"$ {case.typed}" if not case.call else case.typed, answer.message, "```"]
    return "\n".join(lines)


def _short(message: str) -> str:
    """The first line; what fits in place of what was refused depends on this machine's memory and speed."""
    first = message.partition("\n")[0].replace(f"{ROOT}/", "").removeprefix("error: ")
    return f"{first}; {FITS} …" if FITS in message else first


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


if __name__ == "__main__":
    print(page(answers()))
