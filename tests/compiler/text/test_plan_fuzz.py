"""Mutated plans: each is a program that keeps the rules, or is refused by one clear error, and takes little memory."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DovetailError
from dovetail.draw import document, dot, mermaid, page
from dovetail.passes.verify.deep import verify_deep

from .hostile import Net, X, good_plan, tree

PROPORTION, CONSTANT = 60, 8 * 2**20
"""A mutant may take so many times its bytes, and this much: objects, messages, and what a first use imports."""

FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "ctypes.dlopen", "socket.connect",
             "os.remove", "os.rename", "shutil.rmtree", "pickle.find_class")  # fmt: skip
HAPPENED: list[str] = []
_WATCHING = [False]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Notes what no plan may make Python do."""
    if not _WATCHING[0]:
        return
    writes = event == "open" and isinstance(args[1], str) and any(mode in args[1] for mode in "wax+")
    if event in FORBIDDEN or writes or (event == "import" and str(args[0]).startswith("hostile")):
        HAPPENED.append(f"{event}{args}")


TARGETS = (
    "operator.call", "operator.attrgetter", "operator.pow", "operator.mul", "operator.getitem", "math.sqrt",
    "os.system", "aten.from_file.default", "aten.set_.source_Tensor", "aten.resize_.default", "aten.add.Tensor",
    "aten.mul_.Tensor", "aten.cat.default", "aten.relu.default", "aten.linear.default", "aten.view.default",
    "aten.as_strided.default", "aten.empty.memory_format", "aten.nonzero.default", "aten.item.default",
    "aten.randn.default", "aten.split.Tensor", "aten.sym_size.int", "aten.unbind.int", "aten._assert_async.msg",
    "aten.expand.default", "aten.repeat.default", "aten.index.Tensor", "aten.conv2d.default", "aten.arange.default",
    "aten.full.default", "aten.lstm.input", "dovetail.quantized_embedding.default",
    "dovetail.dequantize.default", "torch.sym_max", "torch.ops.load_library", "load_library.__self__.load_library",
    "prims.add.default", "builtins.exec",
)  # fmt: skip
SIZES = (
    "0", "-1", "1", "7", "2**40", "9**9**9", "s0", "(s0 + 1)//0", "Max(s0, 3)", "4611686018427387904", "9" * 30,
    "((((1))))", "s0*s0*s0*s0*s0*s0*s0*s0", "Mod(7, 0)", "1.5", "true", "", "s0 if s0 else 1", "-(-3)",
)  # fmt: skip
TREES = (tree("builtins.list", "null"), tree("builtins.dict", '["a"]'), tree("builtins.dict", "[[1]]"),
         tree("os.system", "null"), tree("collections.namedtuple", "hostile_module.X"), tree("torch.Size", "null"),
         tree("builtins.dict", json.dumps({"__enum__": True, "fqn": "hostile_module:X", "name": "a"})), "[1, {}]", "[]",
         tree("collections.deque", "3"), tree("builtins.tuple", "null", ""), "[" * 500, "null")  # fmt: skip
PATHS = ("", '"""', "\\u0000", "\\r\\n", "../../etc", "a.b.c", "\\u001b[2J", "x" * 3000, "layers.0", " : ", "\\ud800")
WORDS = (
    "%x", "none", "true", "float nan", "float -inf", "slice [0, none, 2]", 'device "cuda:0"', 'device "x"', "here",
    "f32", "[[[[]]]]", "(1, 2)", '"text"', "99999999999", "-1", "0.5", 'opaque "x"', "complex 1.0 2.0", "%", "[", ")",
    "operator", "=", "@sim1", "#3", "~0", "//", "'1", "in", "rows 0:2", "packed Q8_0 f32[4, 32]", "strided",
)  # fmt: skip
FACTS = ("cut", "pinned", "placed", "blocks found, cut, pinned, placed", "scheduled", "verified", "")
Mutation = Callable[[list[str], random.Random], None]


def some_line(program: list[str], rng: random.Random, *words: str) -> int:
    """The number of a line that has one of the words, or of any."""
    fitting = [at for at, line in enumerate(program) if any(word in line for word in words)]
    return rng.choice(fitting or range(len(program)))


def replace_part(program: list[str], rng: random.Random, parts: Callable[[str], list[str]], instead: object) -> None:
    at = rng.randrange(len(program))
    found = [part for part in parts(program[at]) if part]
    if found:
        program[at] = program[at].replace(rng.choice(found), str(instead), 1)


def change_a_letter(program: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(program))
    place = rng.randrange(len(program[at]) + 1)
    program[at] = (
        program[at][:place] + rng.choice('%~@#[](){},:="\\ 0a→\r\t\0é') + program[at][place + rng.randint(0, 1) :]
    )


def drop_a_line(program: list[str], rng: random.Random) -> None:
    if len(program) > 1:
        del program[rng.randrange(len(program))]


def double_a_line(program: list[str], rng: random.Random) -> None:
    program.insert(rng.randrange(len(program) + 1), rng.choice(program))


def move_a_line(program: list[str], rng: random.Random) -> None:
    program.insert(rng.randrange(len(program)), program.pop(rng.randrange(len(program))))


def cut_a_line(program: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(program))
    program[at] = program[at][: rng.randrange(len(program[at]) + 1)]


def put_a_word(program: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(program))
    words = program[at].split(" ")
    words[rng.randrange(len(words))] = rng.choice(WORDS) * rng.choice((1, 1, 1, 2, 300))
    program[at] = " ".join(words)


def put_a_target(program: list[str], rng: random.Random) -> None:
    at = some_line(program, rng, " = aten.", " = operator.")
    head, _, rest = program[at].partition(" = ")
    program[at] = f"{head} = {rng.choice(TARGETS)}({rest.partition('(')[2]}"


def put_an_argument(program: list[str], rng: random.Random) -> None:
    at = some_line(program, rng, " = aten.", " = operator.")
    head, _, rest = program[at].partition("(")
    arguments = rest.partition(")")[0].split(", ")
    arguments[rng.randrange(len(arguments))] = rng.choice(WORDS)
    program[at] = f"{head}({', '.join(arguments)}){rest.partition(')')[2]}"


def put_a_size(program: list[str], rng: random.Random) -> None:
    at = some_line(program, rng, "f32[")
    head, bracket, rest = program[at].partition("[")
    sizes = rest.partition("]")[0].split(", ")
    sizes[rng.randrange(len(sizes))] = rng.choice(SIZES)
    program[at] = f"{head}{bracket}{', '.join(sizes)}]{rest.partition(']')[2]}"


def put_a_number(program: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(program))
    places = [place for place, letter in enumerate(program[at]) if letter.isdigit()]
    if places:
        place = rng.choice(places)
        number = rng.choice((0, 1, 2, 3, 9, 31, 2**31, 2**62, 2**63, 2**64, 10**40, -1))
        program[at] = program[at][:place] + str(number) + program[at][place + 1 :]


def put_a_tree(program: list[str], rng: random.Random) -> None:
    at = some_line(program, rng, "returns", "argument")
    program[at] = (
        f"returns {rng.choice(TREES)}" if "returns" in program[at] else f"argument x: tensor as {rng.choice(TREES)}"
    )


def put_a_path(program: list[str], rng: random.Random) -> None:
    at = some_line(program, rng, " // ")
    program[at] = (
        f"{program[at].partition(' // ')[0]} // {rng.choice(PATHS)} : {rng.choice(PATHS)} : {rng.choice(PATHS)}"
    )


def put_facts(program: list[str], rng: random.Random) -> None:
    program[some_line(program, rng, "facts")] = f"facts {rng.choice(FACTS)}"


def swap_names(program: list[str], rng: random.Random) -> None:
    names = [line[1:].partition(":")[0] for line in program if line.startswith("%")]
    if names:
        at = rng.randrange(len(program))
        program[at] = program[at].replace(f"%{rng.choice(names)}", f"%{rng.choice(names)}", 1)


MUTATIONS: tuple[Mutation, ...] = (
    change_a_letter, change_a_letter, drop_a_line, double_a_line, move_a_line, cut_a_line, put_a_word, put_a_target,
    put_a_target, put_an_argument, put_an_argument, put_a_size, put_a_size, put_a_number, put_a_number, put_a_tree,
    put_a_path, put_facts, swap_names, swap_names,
)  # fmt: skip
RIGS = (
    "sim0=1GiB",
    "sim0=1GiB,sim0=1GiB",
    "sim0=1e99TiB,sim1=0B",
    "cuda0=24GiB",
    "x",
    "",
    "sim0,sim1,sim9999",
    "=" * 99,
)


def mutate(plan: dict[str, Any], rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.04:
            plan["rig"] = rng.choice(RIGS)
        elif rng.random() < 0.03:
            plan["tensors"] = rng.choice(({}, {"table": "torch.float32[4]", "x": "y"}, {"table": "torch.float64[4]"}))
        else:
            rng.choice(MUTATIONS)(plan["program"], rng)
            plan["program"] = plan["program"] or [""]


def seeds(folder: Path) -> list[dict[str, Any]]:
    """Good plans: over two devices, and of dynamic dimensions."""
    first = json.loads(good_plan(folder).read_text())
    dims = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    dovetail.compile(Net().eval(), (X,), backend="sim0", rig="sim0=1GiB", dynamic_shapes=dims).save(
        folder / "plan.json"
    )
    return [first, json.loads((folder / "plan.json").read_text())]


def use(path: Path) -> None:
    """Loads, shows, draws, rehearses, and writes the code of a plan, as `load`, `show` and `verify --deep` do."""
    compiled = dovetail.load(path)
    str(compiled)
    if compiled.program.segments:
        document(compiled.program)
        dot({"net": compiled.program})
        mermaid({"net": compiled.program}, "nodes")
        page({"net": compiled.program})
        verify_deep(compiled.program)
        for source in compiled._executor.sources.values():
            compile(source.listing.code, source.listing.filename, "exec")


def try_mutants(folder: Path, first: int, count: int) -> tuple[int, int]:
    """How many mutants were programs and how many were refused; fails at one that does anything else."""
    plans = [json.dumps(plan) for plan in seeds(folder)]
    path = folder / "plan.json"
    for text in plans:
        path.write_text(text)
        use(path)
    sys.addaudithook(_audit)
    done = [0, 0]
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    tracemalloc.start()
    try:
        for number in range(first, first + count):
            plan = json.loads(plans[number % len(plans)])
            mutate(plan, random.Random(number))
            path.write_text(json.dumps(plan))
            done[try_one(path, number)] += 1
            if not number % 500:
                gc.collect()
    finally:
        tracemalloc.stop()
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.NOTSET)
    return done[0], done[1]


def try_one(path: Path, number: int) -> int:
    """Uses one mutant, watched: a hang ends the test run and shows where. 1 if it was refused."""
    size = path.stat().st_size
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    faulthandler.dump_traceback_later(60, exit=True)
    _WATCHING[0] = True
    refused = 0
    try:
        use(path)
    except DovetailError as error:
        refused = 1
        message = str(error)
        assert len(message) < 8000 + 20 * 4000, f"mutant {number}: a long message"
    except Exception as error:
        raise AssertionError(f"mutant {number} raises {type(error).__name__}: {error}") from error
    finally:
        _WATCHING[0] = False
        faulthandler.cancel_dump_traceback_later()
    assert not HAPPENED, f"mutant {number} did {HAPPENED}"
    taken = tracemalloc.get_traced_memory()[1] - before
    assert taken <= PROPORTION * size + CONSTANT, f"mutant {number} of {size} bytes took {taken}"
    return refused


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    HAPPENED.clear()


@pytest.mark.fifth
def test_a_mutated_plan_is_refused_or_a_program_and_runs_nothing(tmp_path: Path) -> None:
    programs, refused = try_mutants(tmp_path, 0, 100)
    assert programs + refused == 100
    assert refused > 50
    assert programs > 2


@pytest.mark.slow
def test_thousands_of_mutated_plans_are_refused_or_programs_and_run_nothing(tmp_path: Path) -> None:
    """Of 2000, ten minutes for 20 000: ``MUTANTS=20000 pytest tests/compiler/text/test_plan_fuzz.py -m slow``."""
    count = int(os.environ.get("MUTANTS", "2000"))
    programs, refused = try_mutants(tmp_path, 1_000, count)
    assert programs + refused == count
    assert refused > count // 2
