"""Modules that cannot be traced whole, split over several devices by their parts."""

from __future__ import annotations

import copy
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import dovetail
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.compiler.errors import DoesNotFitError, TraceError
from dovetail.components.component import Component
from dovetail.convert import plan_conversion
from dovetail.runtime.store.origins import origins_of
from dovetail.weights.files import index_for
from dovetail.weights.name_matching import Wanted
from tests.cases import slow_but

from . import small_pipeline
from .small_pipeline import WIDTH, Block, Numpy


class Net(nn.Module):
    """Blocks between two layers, and parameters that the net itself reads."""

    def __init__(self, kinds: tuple[type[Block], ...]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(kind() for kind in kinds)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.shift = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.shift
        for block in self.blocks:
            x = block(x)
        last: torch.Tensor = self.last(x)
        return last


class Settling(Net):
    """A net that goes through its blocks until what they add is small."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.shift
        change = torch.full((), 2.0)
        while change > 1e-3:
            before = x
            for block in self.blocks:
                x = torch.tanh(block(x) * 0.2)
            change = (x - before).abs().max()
        last: torch.Tensor = self.last(x)
        return last


class Pipe:
    """What a pipeline has to have."""

    def __init__(self, module: nn.Module) -> None:
        self.components = {"transformer": module}
        self.transformer = module

    @property
    def _execution_device(self) -> torch.device:
        return torch.device("cpu")


KINDS = {
    "numpy": lambda: Net((Block, Block, Block, Numpy, Block, Block)),
    "all numpy": lambda: Net((Numpy,) * 6),
    "loop": lambda: Settling((Block,) * 6),
    "loop of numpy": lambda: Settling((Block, Numpy, Block, Block, Numpy, Block)),
}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _net(kind: str = "numpy") -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    module, x = KINDS[kind]().eval(), torch.randn(2, 5, WIDTH)
    return module, x, module(x)


def _split(module: nn.Module, backend: str = "sim0&sim1", **more: Any) -> Component:
    return dovetail.compile_pipeline(Pipe(module), backend, **more).dovetail.components["transformer"]


def _bytes_on(module: nn.Module) -> dict[str, int]:
    placed: Counter[str] = Counter()
    for tensor in module.parameters():
        placed[str(tensor.device)] += tensor.nbytes
    return placed


@pytest.mark.fifth
@pytest.mark.few(quick=2)
@pytest.mark.parametrize("backend", slow_but(["sim0&sim1&sim2"], ["sim0&sim1", "sim0&sim1&sim2"]))
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_traced_is_split_over_its_blocks_and_changes_no_bit(kind: str, backend: str) -> None:
    module, x, eager = _net(kind)
    component = _split(module, backend)
    assert torch.equal(module(x), eager)
    assert torch.equal(module(x), eager)
    placed = _bytes_on(module)
    assert len(placed) == len(backend.split("&"))
    assert max(placed.values()) < 2 * min(placed.values())
    assert len(component.programs) == sum(1 if type(block) is Block else 2 for block in module.blocks) + 2
    component.restore()
    assert torch.equal(module(x), eager)
    assert _bytes_on(module).keys() == {"cpu"}


@pytest.mark.fifth
def test_the_shares_of_devices_are_those_asked_for() -> None:
    module, x, eager = _net()
    _split(module, tensor_split="2,1")
    assert torch.equal(module(x), eager)
    placed = _bytes_on(module)
    assert 1.5 < placed["sim:0"] / placed["sim:1"] < 3


@pytest.mark.fifth
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_weights_that_rest_in_host_memory_are_brought_for_each_part(backend: str) -> None:
    module, x, eager = _net()
    component = _split(module, backend, params_backend="cpu")
    assert torch.equal(module(x), eager)
    component.view.release()
    assert _bytes_on(module).keys() == {"cpu"}
    assert torch.equal(module(x), eager)
    assert len(component.programs) == 9


@pytest.mark.fifth
def test_a_shape_that_cannot_be_traced_does_not_condemn_another_one() -> None:
    class Choosy(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.shape[1] < 6 or x.sum() > 0 else -x)

    torch.manual_seed(0)
    module, short, long = Choosy((Block,) * 4).eval(), torch.randn(1, 5, WIDTH), torch.randn(1, 6, WIDTH)
    expected = module(short), module(long)
    component = _split(module)
    assert torch.equal(module(long), expected[1])
    assert torch.equal(module(short), expected[0])
    (program,) = (one for one in component.programs if one.program.name == "Choosy")
    homes = {name: home.name for name, home in program.program.home.items()}
    assert all(f"sim{dict(module.named_parameters())[name].device.index}" == home for name, home in homes.items())


@pytest.mark.fifth
def test_what_cannot_be_traced_is_not_traced_again_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, _ = _net("all numpy")
    component = _split(module)
    tried: list[str] = []
    refuse = component.parts.refuse
    monkeypatch.setattr(component.parts, "refuse", lambda call, error: tried.append(str(call)) or refuse(call, error))
    for length in (*range(2, 12), *range(2, 12)):
        module(torch.randn(1, length, WIDTH))
    assert Counter(tried) == Counter(dict.fromkeys(("forward", *(f"blocks.{index}" for index in range(6))), 3))


@pytest.mark.fifth
def test_it_is_said_once_what_could_not_be_traced_and_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    module, x, _ = _net()
    component = _split(module)
    with caplog.at_level(logging.WARNING, "dovetail"):
        module(x)
        module(x)
        module(x[:1])
    (said,) = (record.getMessage() for record in caplog.records if record.name.startswith("dovetail"))
    assert "transformer (Net).forward cannot be compiled whole and is compiled by its parts" in said
    assert "values cross about twice as often" in said
    assert "or leave it so: the results are the same" in said
    assert "submodule" not in said
    assert list(component.parts.reasons) == ["forward", "blocks.3"]


@pytest.mark.fifth
def test_parts_that_are_left_run_as_they_are_and_the_rest_stays_compiled() -> None:
    torch.manual_seed(0)
    module, x = Net((Block,) * 6).eval(), torch.randn(2, 5, WIDTH)
    seen: list[torch.Tensor] = []
    module.blocks[4].register_forward_hook(lambda _, args, result: seen.append(result) or result * 2)
    eager, shown = module(x), seen.pop()
    component = _split(module)
    component.sites.leave([module.blocks[4]])
    assert torch.equal(module(x), eager)
    assert torch.equal(seen.pop().cpu(), shown)
    assert not seen
    inside = [call for call in component.calls if call.path.startswith("blocks.4.") and call.programs]
    assert len(inside) == 2  # what is left runs its own Python over its two compiled layers
    assert len(component.programs) == 7 + len(inside)


@pytest.mark.fifth
def test_what_a_block_writes_into_its_arguments_reaches_the_caller() -> None:
    class Writes(Block):
        def forward(self, x: torch.Tensor, kept: list[torch.Tensor] | None = None) -> torch.Tensor:
            x.mul_(2)
            kept.append(x * 3)
            return super().forward(x)

    class Reads(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept: list[torch.Tensor] = []
            for block in self.blocks:
                x = x + block(x, kept)
            last: torch.Tensor = self.last(x + torch.stack(kept).sum(0))
            return last

    torch.manual_seed(0)
    module, x = Reads((Writes,) * 4).eval(), torch.randn(2, 5, WIDTH)
    eager, written = module(given := x.clone()), given
    _split(module)
    given = x.clone()
    assert torch.equal(module(given), eager)
    assert torch.equal(given, written)


class Cache:
    """Keeps what each block computed."""

    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}

    def update(self, index: int, x: torch.Tensor) -> torch.Tensor:
        self.kept[index] = torch.cat([self.kept[index], x], 1) if index in self.kept else x
        return self.kept[index]


class Caching(nn.Module):
    """Blocks that attend to what a cache has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        x = self.embed(ids)
        for index, block in enumerate(self.blocks):
            x = x + block(x if cache is None else cache.update(index, x).mean(1, keepdim=True))
        return x


def test_calls_with_a_cache_compile_nothing() -> None:
    torch.manual_seed(0)
    module, ids = Caching().eval(), torch.arange(12).view(1, 12)

    def feed() -> torch.Tensor:
        cache = Cache()
        return torch.cat([module(ids[:, index : index + 1], cache=cache) for index in range(12)], 1)

    eager, whole = feed(), module(ids)
    component = _split(module)
    assert torch.equal(feed(), eager)
    assert not component.programs
    assert {tensor.device.index for tensor in module.parameters()} == {0, 1}
    assert torch.equal(module(ids), whole)
    assert len(component.programs) == 1


@pytest.mark.fifth
@pytest.mark.few(quick=2)
@pytest.mark.parametrize("backend", slow_but(["sim0&sim1"], ["cpu", "sim0", "sim0&sim1", "sim0&sim1&sim2"]))
@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_its_own_is_compiled_by_its_parts_and_stays_as_it_was(kind: str, backend: str) -> None:
    module, x, eager = _net(kind)
    compiled = dovetail.compile(module, (x,), backend=backend)
    assert torch.equal(compiled(x), eager)
    assert torch.equal(compiled(x[:1]), module(x[:1]))
    assert "forward" not in vars(module)
    assert _bytes_on(module).keys() == {"cpu"}
    assert str(compiled).startswith(f"{type(module).__name__} by its parts on {backend.replace('&', ' & ')}")


@pytest.mark.fifth
def test_what_is_compiled_by_its_parts_has_programs_but_no_program(tmp_path: Path) -> None:
    module, x, _ = _net()
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1")
    assert isinstance(compiled, CompiledByParts)
    assert len(compiled.programs) == 9
    for ask in (lambda: compiled.program, lambda: compiled.schedule, lambda: compiled.save(tmp_path / "plan.json")):
        with pytest.raises(TraceError, match=r"compiled by its parts: take theirs .*Net cannot be traced past"):
            ask()


@pytest.mark.fifth
def test_a_device_map_places_the_parts() -> None:
    module, x, eager = _net()
    places = {"": "sim0", "blocks.2": "sim1", "blocks.3": "sim2", "blocks.4.down": "sim1", "last": "sim2"}
    compiled = dovetail.compile(module, (x,), device_map=places)
    assert torch.equal(compiled(x), eager)
    devices = [" & ".join(map(str, program.program.devices)) for program in compiled.programs]
    assert devices == ["sim0", "sim0", "sim0", "sim1", "sim2", "sim2", "sim0 & sim1", "sim0", "sim2"]


@pytest.mark.fifth
def test_weights_of_files_are_read_for_the_parts(tmp_path: Path) -> None:
    module, x, eager = _net()
    save_file({name: tensor.clone() for name, tensor in module.state_dict().items()}, tmp_path / "net.safetensors")
    for rests in (None, "cpu", "disk"):
        hollow = Net((Block, Block, Block, Numpy, Block, Block)).eval().to("meta")
        compiled = dovetail.compile(
            hollow, (x,), weights=tmp_path / "net.safetensors", backend="sim0&sim1", params_backend=rests
        )
        assert torch.equal(compiled(x), eager)


class Tied(Net):
    """A net whose last layer has the weight of the first, and a buffer under two names."""

    def __init__(self) -> None:
        super().__init__((Block, Numpy))
        self.last.weight = self.first.weight
        self.register_buffer("offset", torch.randn(WIDTH))
        self.blocks[0].register_buffer("offset", self.offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.offset + self.blocks[0].offset


@pytest.mark.fifth
@pytest.mark.few(3)
@pytest.mark.parametrize(("is_meta", "rests"), [(False, None), (True, None), (True, "disk")])
@pytest.mark.parametrize("lacks", [("last.weight", "blocks.0.offset"), ("first.weight", "offset")])
def test_tied_weights_of_which_files_have_one_name_stay_tied(
    is_meta: bool, lacks: tuple[str, str], rests: str | None, tmp_path: Path
) -> None:
    module, hollow, x = Tied().eval(), Tied().eval(), torch.randn(2, 8, WIDTH)
    held = {name: tensor.clone() for name, tensor in module.state_dict().items() if name not in lacks}
    save_file(held, tmp_path / "net.safetensors")
    if is_meta:
        hollow.to("meta")
        hollow.last.weight = hollow.first.weight
        hollow.blocks[0].offset = hollow.offset
    compiled = dovetail.compile(
        hollow, (x,), weights=tmp_path / "net.safetensors", backend="sim0&sim1", params_backend=rests
    )
    assert isinstance(compiled, CompiledByParts)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
    held_now = compiled._component.module
    assert held_now.last.weight is held_now.first.weight


class Counting(Net):
    """A net that counts its calls in a buffer that it writes, and in a tensor of its own."""

    def __init__(self) -> None:
        super().__init__((Block, Numpy))
        self.register_buffer("count", torch.zeros(()))
        self.kept = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.kept += 1
        return super().forward(x) + self.count + self.kept


class Replacing(Counting):
    """A net that counts its calls in a buffer that it replaces."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return Net.forward(self, x) + self.count


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [Counting, Replacing])
@pytest.mark.parametrize("backend", ["cpu", "sim0&sim1"])
def test_the_example_call_leaves_no_count_in_buffers(backend: str, kind: type[Counting]) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(2, 8, WIDTH)
    eager = copy.deepcopy(module)
    compiled = dovetail.compile(module, (x,), backend=backend)
    assert (module.count.item(), module.kept.item()) == (0, 0)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(x).cpu(), eager(x))


@pytest.mark.fifth
def test_packed_weights_stay_packed_where_parts_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WIDTH", 256)
    monkeypatch.setattr(small_pipeline, "WIDTH", 256)
    module, x, _ = _net("all numpy")
    save_file(module.state_dict(), tmp_path / "net.safetensors")
    plan_conversion(tmp_path / "net.safetensors", tmp_path / "net.gguf", "q8_0").run()
    origins = origins_of(index_for(Wanted.of_module(module), tmp_path / "net.gguf"))
    for name, parameter in module.named_parameters():
        parameter.copy_(origins[name].whole(parameter.dtype, torch.device("cpu")))
    compiled = dovetail.compile(module, (x,), weights=tmp_path / "net.gguf", backend="sim0&sim1")
    assert isinstance(compiled, CompiledByParts)
    assert torch.equal(compiled(x), module(x))
    assert sum(weight.quant == "Q8_0" for one in compiled.programs for weight in one.program.weights.values()) == 14


def test_a_call_that_the_module_refuses_is_an_error_of_tracing_that_says_what_it_raised() -> None:
    module, x, _ = _net()
    with pytest.raises(TraceError, match=r"^Net refuses this example call: RuntimeError: .*shape.*: give arguments"):
        dovetail.compile(module, (x[..., :3],), backend="sim0&sim1")


@pytest.mark.fifth
def test_rows_are_not_split_by_parts_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    module, x, eager = _net()
    with caplog.at_level(logging.WARNING, "dovetail"):
        compiled = dovetail.compile(module, (x,), backend="sim0&sim1", split_mode="row")
    assert torch.equal(compiled(x), eager)
    assert "blocks are placed whole, for rows cannot be split by parts" in caplog.text


@pytest.mark.fifth
def test_devices_that_cannot_hold_the_parts_are_refused_with_both_numbers() -> None:
    module, x, _ = _net()
    with pytest.raises(DoesNotFitError, match=r"Net needs .* of weights on sim\d, which has .* free of"):
        dovetail.compile(module, (x,), backend="sim0&sim1", rig="sim0=64KiB,sim1=32KiB")


def _prompted(embeds: Any, prompt: torch.Tensor, **more: Any) -> torch.Tensor:
    made: torch.Tensor = embeds.generate(prompt, max_new_tokens=6, do_sample=False, **more)
    return made


@pytest.mark.fifth
@pytest.mark.parametrize("backend", slow_but(["sim0&sim1"], ["sim0", "sim0&sim1", "sim0&sim1&sim2"]))
def test_generating_text_over_several_devices_makes_the_tokens_of_eager_and_compiles_nothing(backend: str) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, max_position_embeddings=64,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config).eval()
    ways: list[dict[str, Any]] = [
        {},
        {"cache_implementation": "static"},
        {"use_cache": False},
        {"num_beams": 2},
    ]
    prompts = torch.tensor([[3, 5, 7]]), torch.tensor([[3, 5, 7, 9, 11], [2, 4, 6, 8, 10]])
    eager = [_prompted(model, prompt, **way) for prompt in prompts for way in ways]
    whole = model(prompts[0], use_cache=False).logits
    component = _split(model, backend)
    made = [_prompted(model, prompt, **way) for prompt in prompts for way in ways]
    assert all(map(torch.equal, made, eager))
    assert not component.programs
    assert {tensor.device.index for tensor in model.parameters()} == set(range(len(component.devices)))
    assert torch.equal(model(prompts[0], use_cache=False).logits, whole)
    assert len(component.programs) == 1
    component.restore()
    assert torch.equal(_prompted(model, prompts[0]), eager[0])


class Halves(nn.Module):
    """Two halves that are called one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))
        self.decoder = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def _encode(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.encoder:
            x = layer(x)
        return x

    def _decode(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.decoder:
            x = layer(x)
        return x


@pytest.mark.fifth
def test_what_one_part_takes_is_not_offered_to_another_one() -> None:
    gc.collect()  # what other tests left on these devices
    module, x = Halves().eval(), torch.ones(1, 256)
    component = _split(module, rig="sim0=1400KiB,sim1=1400KiB")
    encoded = module._encode(x)
    before = component.assigned.bytes_on()
    with pytest.raises(DoesNotFitError, match=r"Halves needs .* of weights .* free of 1\.4 MiB"):
        module._decode(encoded)
    assert component.assigned.bytes_on() == before
    assert _bytes_on(module)["cpu"] == sum(tensor.nbytes for tensor in module.decoder.parameters())


@pytest.mark.fifth
def test_what_a_component_holds_itself_is_offered_to_its_parts() -> None:
    gc.collect()  # what other tests left on these devices
    module, x, eager = _net()
    parts = sum(tensor.nbytes for tensor in module.parameters())
    component = _split(module, rig=f"sim0={parts}B,sim1={parts // 2}B")
    first = module.first(x)
    assert component.assigned.bytes_on().total() > 0
    assert torch.equal(module(x), eager)
    assert torch.equal(module.first(x), first)
    assert len(_bytes_on(module)) == 2


def test_calls_that_no_module_could_answer_leave_it_compiled_whole(caplog: pytest.LogCaptureFixture) -> None:
    model, pipe, x = small_pipeline.compiled_pair(small_pipeline.Block)
    component = pipe.dovetail.components["unet"]
    for wrong in range(1, 6):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            pipe(torch.randn(wrong, WIDTH + wrong))
    assert not component.parts.reasons
    assert "cannot be compiled" not in caplog.text
    assert torch.equal(pipe(x), model(x))
    (program,) = component.programs
    assert len(program.program.weights) == len(list(model.parameters())), "one program has the whole of it"


class Fifth(Block):
    """A block that no trace follows where it gets five rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.from_numpy(x.cpu().numpy()).to(x.device) if len(x) == 5 else x)


class Failing(Net):
    """A net that fails with five rows when its blocks have run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        if len(x) == 5:
            raise RuntimeError("five rows")
        return made


def test_a_part_that_was_refused_within_a_call_that_failed_is_forgotten_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    module, x = Failing((Fifth,) * 2).eval(), torch.randn(2, WIDTH)
    five = torch.randn(5, WIDTH)
    eager, eager_five = module(x), module.blocks[0](five)
    component = _split(module)
    with caplog.at_level(logging.INFO, "dovetail"):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="five rows"):
                module(five)
    assert "cannot be compiled" not in caplog.text
    assert not component.parts.reasons
    assert torch.equal(module(x), eager)
    assert all(call.failures == 0 and call.whole is None for call in component.calls)
    assert torch.equal(module.blocks[0](five), eager_five)
    assert list(component.parts.reasons) == ["blocks.0"], "a part that is called by itself and runs"


class Choosy(Numpy):
    """A block that no trace follows, and that refuses numbers of which one is large."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        y = super().between(x)
        if float(y.abs().max()) > 1e6:
            raise RuntimeError("too large")
        return y


@pytest.mark.parametrize("again", [1, 2])
def test_a_call_that_fails_and_then_succeeds_runs_by_its_parts_and_says_so(
    caplog: pytest.LogCaptureFixture, again: int
) -> None:
    model, pipe, x = small_pipeline.compiled_pair(Choosy)
    component = pipe.dovetail.components["unet"]
    with caplog.at_level(logging.WARNING, "dovetail"):
        with pytest.raises(RuntimeError, match="too large"):
            pipe.unet(x * 1e12)
        assert not caplog.text
        for _ in range(2):
            assert torch.equal(pipe.unet(x[:again]), model(x[:again]))
    assert caplog.text.count("cannot be compiled whole and is compiled by its parts") == 1
    assert "forward" in component.parts.reasons
    assert not component.stream()
