"""The key of a trace: equal where tracing would yield the same program, and for nothing else."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dovetail.cache.key import Key, key_of

Load = Callable[..., ModuleType]


def key(module: nn.Module, *args: Any, kind: str = "cpu", shapes: Any = None, **kwargs: Any) -> Key | None:
    return key_of(module.eval(), args or (torch.ones(2, 4),), kwargs, shapes, kind)


def test_a_model_that_is_made_again_has_the_same_key(load: Load) -> None:
    first, second = key(load().Model()), key(load().Model())
    assert first is not None
    assert first == second


def test_the_numbers_in_parameters_are_not_in_the_key(load: Load) -> None:
    model = load().Model()
    before = key(model)
    with torch.no_grad():
        model.layer.weight.zero_()
    assert key(model) == before
    assert key(model, torch.zeros(2, 4)) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * FACTOR", "x * FACTOR + 1"),
        ("FACTOR = 3", "FACTOR = 4"),
        ("F.relu", "F.gelu"),
        ("x + self.by", "x - self.by"),
        ('"one": 1.0', '"one": -1.0'),
        ("by=1.0", "by=-0.0"),
        ("1.0, 2.0, 3.0", "1.0, 2.0, 3.5"),
        ("scale=1.0", "scale=2.0"),
        ("torch.arange(float(width))", "torch.ones(width)"),
        ("persistent=False", "persistent=True"),
    ],
)
def test_an_edit_of_whatever_a_forward_leads_to_is_another_key(load: Load, old: str, new: str) -> None:
    assert key(load().Model()) != key(load(old, new).Model())


def _method(model: nn.Module, module: ModuleType) -> None:
    type(model).forward = lambda self, x, scale=1.0, *, flag=False: x


def _class_of_a_part(model: nn.Module, module: ModuleType) -> None:
    module.Helper.__call__ = lambda self, x: x


def _global(model: nn.Module, module: ModuleType) -> None:
    module.helped = module.Helper(2.0)


def _global_of_the_module(model: nn.Module, module: ModuleType) -> None:
    module.FACTOR = 5


def _in_a_container(model: nn.Module, module: ModuleType) -> None:
    module.SCALES["one"] = 2.0


def _attribute(model: Any, module: ModuleType) -> None:
    model.helper.by = 2.0


def _another_object(model: Any, module: ModuleType) -> None:
    model.helper = torch.sin


def _a_part(model: Any, module: ModuleType) -> None:
    model.layer = nn.Sequential(model.layer)


def _a_closure(model: Any, module: ModuleType) -> None:
    model.helper = functools.partial(module.helped)


def _frozen(model: nn.Module, module: ModuleType) -> None:
    model.requires_grad_(False)


def _tied(model: Any, module: ModuleType) -> None:
    model.layer.bias = nn.Parameter(torch.zeros(4))
    model.other = model.layer.bias


def _dtype(model: nn.Module, module: ModuleType) -> None:
    model.to(torch.bfloat16)


def _strides(model: Any, module: ModuleType) -> None:
    model.layer.weight = nn.Parameter(torch.zeros(4, 4).t().contiguous().t())


def _buffer(model: Any, module: ModuleType) -> None:
    model.table.add_(1)


CHANGES = (
    _method, _class_of_a_part, _global, _global_of_the_module, _in_a_container, _attribute, _another_object, _a_part,
    _a_closure, _frozen, _tied, _dtype, _strides, _buffer,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_person_changes_in_a_model_changes_the_key(load: Load, change: Callable[..., None]) -> None:
    module = load()
    model = module.Model()
    before = key(model)
    change(model, module)
    assert key(model) != before


def test_a_function_of_torch_that_somebody_replaces_changes_the_key(load: Load, monkeypatch: Any) -> None:
    model = load().Model()
    before = key(model)
    with monkeypatch.context() as patch:
        patch.setattr(F, "relu", F.gelu)
        assert key(model) != before
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "mul", lambda x, y: x)
        assert key(model) != before
    assert key(model) == before


def test_the_call_is_in_the_key(load: Load) -> None:
    model = load().Model()
    x = torch.ones(2, 4)
    calls = [
        key(model, x),
        key(model, torch.ones(3, 4)),
        key(model, x.bfloat16()),
        key(model, torch.ones(4, 2).t()),
        key(model, x, 0.0),
        key(model, x, -0.0),
        key(model, x, 1),
        key(model, x, True),
        key(model, x, scale=1.0),
        key(model, x, flag=True),
        key(model, x, kind="cuda"),
        key(model, x, shapes={"x": {0: torch.export.Dim.AUTO}}),
        key(model, x, shapes={"x": {0: torch.export.Dim("n", min=2, max=8)}}),
        key(model, x, shapes={"x": {0: torch.export.Dim("n", min=2, max=9)}}),
    ]
    assert None not in calls
    assert len(set(calls)) == len(calls)


def test_settings_of_torch_and_of_the_environment_are_in_the_key(load: Load, monkeypatch: Any) -> None:
    model = load().Model()
    before = key(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert key(model) != before
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert key(model) != before
    with monkeypatch.context() as patch:
        patch.setenv("DIFFUSERS_ATTN_BACKEND", "flex")
        assert key(model) != before
    torch.set_default_dtype(torch.float64)
    try:
        assert key(model) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert key(model) == before


class OfThisTest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def _script() -> nn.Module:
    made: dict[str, Any] = {"nn": nn, "__name__": "__main__"}
    exec("class Typed(nn.Module):\n    def forward(self, x):\n        return x", made)
    module: nn.Module = made["Typed"]()
    return module


def _with(value: Any) -> nn.Module:
    module = OfThisTest()
    module.held = value
    return module


@pytest.mark.parametrize(
    "make",
    [
        _script,
        lambda: _with(iter([1])),
        lambda: _with(torch.Generator()),
        lambda: _with(_script().forward),
        lambda: _with({iter([1])}),
        lambda: _with(torch.ones(2).to_sparse()),
    ],
)
def test_what_cannot_be_told_by_content_has_no_key(make: Callable[[], nn.Module]) -> None:
    assert key(OfThisTest()) is not None
    assert key(make()) is None


def test_under_a_mode_of_somebody_else_nothing_has_a_key() -> None:
    with torch.device("cpu"):
        assert key(OfThisTest()) is None


def test_hooks_on_all_modules_leave_no_key() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert key(OfThisTest()) is None
    finally:
        handle.remove()


def test_what_somebodys_compiled_code_has_in_its_classes_ends_no_compilation() -> None:
    """Functions that Cython made, such as numpy's, have a descriptor where classes have the name of their module."""
    assert key(NamesNumpy()) is None  # chance, of somebody's own code
    key(_with(np.random.choice))


class NamesNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[np.random.choice(2)] if self.training else x


class Unspeakable:
    """An object that fails in whatever is asked of it."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError("no")


def test_an_object_that_fails_when_it_is_looked_at_leaves_no_key_and_no_error(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, "dovetail.cache.key")
    module = OfThisTest()
    vars(module)["held"] = Unspeakable()
    assert key(module) is None
    assert "is not kept on disk" in caplog.text


def _of_a_library(name: str) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    small: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    small |= {"conv_dim": (8,), "conv_stride": (2,), "conv_kernel": (2,), "num_feat_extract_layers": 1}
    small |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"}
    config = getattr(transformers, f"{name}Config")(**small)
    return getattr(transformers, f"{name}Model")(config).eval(), {"input_values": torch.ones(1, 64)}


@pytest.mark.parametrize("name", ["Wav2Vec2", "Hubert", "WavLM"])
def test_models_that_mask_by_numpy_while_they_train_have_a_key(name: str) -> None:
    model, call = _of_a_library(name)
    first = key_of(model, (), call, None, "cpu")
    assert first is not None
    assert first == key_of(model, (), call, None, "cpu")


@pytest.mark.parametrize(
    "reads",
    [
        "len(open('/dev/null').read())",
        "time.time()",
        "eval('1')",
        "random()",
        "len(os.listdir('/'))",
        "Path('a').stat()",
    ],
)
def test_a_forward_that_reads_the_world_has_no_key_and_one_line_says_why(load: Load, caplog: Any, reads: str) -> None:
    caplog.set_level(logging.INFO, "dovetail.cache.key")
    imports = "import os, time\nfrom pathlib import Path\nfrom random import random\nimport torch\n"
    module = _edited(load, ("import torch\n", imports), ("helped(x))", f"helped(x)) + {reads}"))
    assert key(module.Model()) is None
    assert len([one for one in caplog.records if "it depends on what models_of_somebody." in one.getMessage()]) == 1


def test_a_method_that_opens_files_and_that_no_forward_names_leaves_the_key(load: Load) -> None:
    loads = "class Model(nn.Module):\n    def load_all(self, path): return open(path).read()\n"
    assert key(load("class Model(nn.Module):\n", loads).Model()) is not None


def test_an_environment_variable_that_a_forward_names_is_in_the_key(load: Load, monkeypatch: Any) -> None:
    reads = ("import torch\n", "import torch, os\n"), ("helped(x))", 'helped(x)) + len(os.environ.get("MY_SCALE", ""))')
    found = []
    for value in ("1", "1", "22"):
        monkeypatch.setenv("MY_SCALE", value)
        monkeypatch.setenv("MY_OTHER", str(len(found)))
        found.append(key(_edited(load, *reads).Model()))
    assert found[0] == found[1] is not None
    assert found[2] not in found[:2]
    assert key(_edited(load, reads[0], ("helped(x))", "helped(x)) + len(os.environ)")).Model()) is None


def _edited(load: Load, *edits: tuple[str, str]) -> ModuleType:
    from .conftest import MODEL

    text = MODEL
    for old, new in edits:
        text = text.replace(old, new)
    return load(MODEL, text)


def test_each_switch_of_torch_is_in_the_key(load: Load) -> None:
    model = load().Model()
    before = key(model)
    for owner, name in (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
    ):
        was = getattr(owner, name)
        setattr(owner, name, not was)
        try:
            assert key(model) != before
        finally:
            setattr(owner, name, was)


def test_a_file_that_was_edited_after_it_was_imported_is_told_by_what_was_imported(load: Load, tmp_path: Any) -> None:
    """What runs is of before the edit, what lies on disk is of after it: neither process finds the other's trace."""
    model = load("FACTOR = 3", "FACTOR = 3\nOTHER = 1").Model()
    file = tmp_path / "models_of_somebody.py"
    file.write_text(file.read_text().replace("OTHER = 1", "OTHER = 2"))
    late = key(model)
    edited = key(load("FACTOR = 3", "FACTOR = 3\nOTHER = 2").Model())
    assert late != edited


def test_a_function_that_is_put_where_only_a_text_leads_is_another_key(load: Load) -> None:
    module = load("    def forward(", "    def go_a(self, x): return x\n    def forward(")
    model = module.Model()
    before = key(model)
    module.Model.go_a = lambda self, x: x + 1  # type: ignore[attr-defined]
    assert key(model) != before
