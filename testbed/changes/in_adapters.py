"""LoRAs, textual inversions and IP-Adapters, from files in the published formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from safetensors.torch import load_file

from .change import Step, add, at_once, change
from .files import TOKEN, lora_file
from .in_weights import layer, replace_a_parameter
from .models import FLUX, SD, SDXL, Model

LORA, MERGED, INVERSION, IP = "LoRA", "LoRA merged", "textual inversion", "IP-Adapter"


def _load(model: Model = FLUX, number: int = 1, name: str = "one", hotswap: bool = False) -> Step:
    def load(pipe: Any, folder: Path) -> None:
        pipe.load_lora_weights(lora_file(folder, model, number), adapter_name=name, hotswap=hotswap)

    return load


def _both(pipe: Any, folder: Path) -> None:
    for number, name in ((1, "one"), (2, "two")):
        _load(FLUX, number, name)(pipe, folder)
    pipe.set_adapters(["one", "two"], [0.7, -0.3])


def _fuse(pipe: Any) -> None:
    pipe.fuse_lora()


def _fuse_weakly(pipe: Any) -> None:
    pipe.fuse_lora(lora_scale=0.4)


def _fuse_safely(pipe: Any) -> None:
    pipe.fuse_lora(safe_fusing=True)


def _fuse_one(pipe: Any) -> None:
    pipe.fuse_lora(adapter_names=["two"])


def _unfuse(pipe: Any) -> None:
    pipe.unfuse_lora()


def _unload(pipe: Any) -> None:
    pipe.unload_lora_weights()


def _scale(pipe: Any) -> None:
    pipe.set_adapters(["one"], [0.3])


def _disable(pipe: Any) -> None:
    pipe.disable_lora()


def _delete(pipe: Any) -> None:
    pipe.delete_adapters(["one"])


_swap = _load(number=4, hotswap=True)


def _write(pipe: Any) -> None:
    held = layer(pipe)
    getattr(held, "base_layer", held).weight.data.mul_(-3)


def _round(pipe: Any) -> None:
    pipe.transformer.bfloat16().float()


for _model in (FLUX, SD, SDXL):
    _one = _load(_model)
    add(f"{_model.name}_lora", LORA, _model, _one)
    add(f"{_model.name}_lora_then_fused", MERGED, _model, _one, _fuse)
    add(f"{_model.name}_lora_fused_then_unfused", MERGED, _model, at_once(_one, _fuse), _unfuse,
        expected=((_one, _fuse), (_one,)))  # fmt: skip

_one = _load()
add("lora_scaled", LORA, FLUX, _one, _scale)
add("lora_scaled_at_once", LORA, FLUX, at_once(_one, _scale))
add("lora_of_two", LORA, FLUX, _both)
add("lora_disabled", LORA, FLUX, _one, _disable)
add("lora_deleted", LORA, FLUX, _both, _delete)
add("lora_unloaded", LORA, FLUX, _one, _unload)
add("lora_swapped", LORA, FLUX, _load(number=3), _swap)
add("lora_swapped_at_once", LORA, FLUX, at_once(_load(number=3), _swap))
add("lora_swapped_and_fused", MERGED, FLUX, _load(number=3), at_once(_swap, _fuse))
add("lora_over_a_written_weight", LORA, FLUX, _write, _one)
add("lora_and_write", LORA, FLUX, _one, _write)

for _name, _steps in {
    "fused_weakly": (_one, _fuse_weakly),
    "fused_safely": (_one, _fuse_safely),
    "of_two_fused": (_both, _fuse),
    "of_two_one_fused": (_both, _fuse_one),
    "fused_and_unloaded": (_one, _fuse, _unload),
    "fused_over_a_written_weight": (_write, _one, _fuse),
    "fused_over_a_replaced_weight": (replace_a_parameter, _one, _fuse),
    "fused_over_a_cast": (_round, _one, _fuse),
    "fused_and_written": (_one, _fuse, _write),
    "fused_and_cast": (_one, _fuse, _unload, _round),
}.items():
    add(f"lora_{_name}", MERGED, FLUX, at_once(*_steps))

add("lora_fused_then_unloaded", MERGED, FLUX, at_once(_one, _fuse), _unload)
add("lora_fused_then_written", MERGED, FLUX, at_once(_one, _fuse), _write)
add("lora_written_fused_written", MERGED, FLUX, _write, at_once(_one, _fuse), _write)
add("lora_fused_and_unfused", MERGED, FLUX, at_once(_one, _fuse, _unfuse), expected=((_one,),))
add("lora_fused_unfused_unloaded", MERGED, FLUX, at_once(_one, _fuse, _unfuse, _unload), expected=((),), is_seen=False)
add("lora_fused_twice", MERGED, FLUX, at_once(_one, _fuse), _unfuse, _fuse,
    expected=((_one, _fuse), (_one,), (_one, _fuse)))  # fmt: skip
add("lora_unfused_over_a_written_weight", MERGED, FLUX, at_once(_write, _one, _fuse), _unfuse,
    expected=((_write, _one, _fuse), (_write, _one)))  # fmt: skip
add("lora_fused_written_unfused", MERGED, FLUX, at_once(_one, _fuse), _write, _unfuse, is_exact=False)
add("lora_two_fused_one_after_another", MERGED, FLUX, at_once(_both, _fuse_one), _fuse)


@change(LORA, SD)
def lora_of_kohya(pipe: Any, folder: Path) -> None:
    pipe.load_lora_weights(folder / "loras" / "kohya.safetensors")


@change(MERGED, SD)
def lora_of_kohya_fused(pipe: Any, folder: Path) -> None:
    lora_of_kohya(pipe, folder)
    pipe.fuse_lora()


@change(LORA, SD, call={"cross_attention_kwargs": {"scale": 0.3}})
def lora_scaled_by_the_call(pipe: Any, folder: Path) -> None:
    _load(SD)(pipe, folder)


# Textual inversion


def inversion(place: str, **more: Any) -> Step:
    def load(pipe: Any, folder: Path) -> None:
        pipe.load_textual_inversion(str(folder / "inversions" / place), **more)

    return load


_PROMPT = {"call": {"prompt": f"a {TOKEN}"}}
_FILES: dict[str, dict[str, Any]] = {
    "diffusers": {},
    "pickled": {},
    "several.safetensors": {},
    "a1111.pt": {},
    "a1111.safetensors": {"token": TOKEN},
}
for _file, _more in _FILES.items():
    add(f"inversion_{_file.replace('.', '_')}", INVERSION, SD, inversion(_file, **_more), **_PROMPT)


def _forget(pipe: Any) -> None:
    pipe.unload_textual_inversion()


add("inversion_unloaded", INVERSION, SD, inversion("several.safetensors"), _forget, **_PROMPT)
add("inversion_of_two", INVERSION, SD, inversion("diffusers", token="<a>"), inversion("a1111.pt", token="<b>"),
    call={"prompt": "a <a> <b>"})  # fmt: skip
add("inversion_and_lora", INVERSION, SD, at_once(inversion("diffusers"), _load(SD), _fuse), **_PROMPT)


@change(INVERSION, SDXL, **_PROMPT)
def inversion_of_sdxl(pipe: Any, folder: Path) -> None:
    state = load_file(folder / "inversions" / "sdxl.safetensors")
    pipe.load_textual_inversion(state["clip_l"], token=TOKEN, text_encoder=pipe.text_encoder, tokenizer=pipe.tokenizer)
    pipe.load_textual_inversion(
        state["clip_g"], token=TOKEN, text_encoder=pipe.text_encoder_2, tokenizer=pipe.tokenizer_2
    )


# IP-Adapters


def ip_adapter(model: Model, kind: str, scale: float = 0.7) -> Step:
    def load(pipe: Any, folder: Path) -> None:
        pipe.load_ip_adapter(str(folder / "ip" / model.name), "models", f"ip-adapter_{kind}.safetensors")
        pipe.set_ip_adapter_scale(scale)

    return load


def _weaken(pipe: Any) -> None:
    pipe.set_ip_adapter_scale(0.2)


def _take_out(pipe: Any) -> None:
    pipe.unload_ip_adapter()


_SEEN = {"call": {"ip_adapter_image": Image.new("RGB", (32, 32), (200, 60, 20))}}
for _model in (SD, SDXL):
    for _kind in ("plain", "plus"):
        add(f"ip_adapter_{_kind}_of_{_model.name}", IP, _model, ip_adapter(_model, _kind), **_SEEN)
add("ip_adapter_taken_out", IP, SD, at_once(ip_adapter(SD, "plain"), _take_out), is_seen=False)
add("ip_adapter_weakened", IP, SD, ip_adapter(SD, "plain"), _weaken, **_SEEN)
add("ip_adapter_and_lora", IP, SD, at_once(ip_adapter(SD, "plain"), _load(SD)), **_SEEN)
add("ip_adapter_and_lora_fused", IP, SD, at_once(_load(SD), _fuse, ip_adapter(SD, "plain")), **_SEEN)
