"""Each use of a name that diffusers, transformers or peft does not promise: a release that changes one fails here."""

import ast
import logging
from pathlib import Path
from typing import Any

import diffusers
import peft
import pytest
import torch
import transformers
from diffusers.hooks import group_offloading
from transformers import initialization

from dovetail.conventions import libraries
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.smoke
VERSIONS = f"diffusers {diffusers.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
DOVETAIL = Path(libraries.__file__).parent
PRIVATE = (
    "_fix_state_dict_keys_on_load",
    "_keep_in_fp32_modules",
    "_skip_layerwise_casting_patterns",
    "SINGLE_FILE_LOADABLE_CLASSES",
    "infer_diffusers_model_type",
    "DIFFUSERS_DEFAULT_PIPELINE_PATHS",
    "_lora_loadable_modules",
    "_execution_device",
    "_hf_hook",
    "_get_dtype_plan",
    "get_model_conversion_mapping",
    "rename_source_key",
    "sub_configs",
    "_is_hf_initialized",
    "_load_ip_adapter_weights",
    "check_adapters_to_merge",
    "lora_variant",
    "maybe_free_model_hooks",
)


@pytest.fixture(scope="module")
def painter() -> tuple[Any, dict[str, Any]]:
    return tiny_pipelines.sd()


@pytest.fixture
def lora_layer() -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    config = peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
    return peft.get_peft_model(module, config, adapter_name="one").base_model.model[0]


def test_no_other_module_spells_a_private_name() -> None:
    for path in DOVETAIL.rglob("*.py"):
        if path.name != "libraries.py" and "demo" not in path.parts:
            code = ast.dump(ast.parse(path.read_text()))
            found = [name for name in PRIVATE if f"'{name}'" in code]
            assert not found, f"{path} uses {found}: put that into dovetail/libraries.py"


def test_the_hook_of_a_component_says_where_a_pipeline_makes_its_tensors(painter: Any) -> None:
    class Hook:
        execution_device = torch.device("meta")

    pipe, _ = painter
    for module in (pipe.unet, pipe.text_encoder, pipe.vae):
        setattr(module, libraries.HOOK, Hook())
    try:
        assert libraries.execution_device(pipe) == torch.device("meta"), VERSIONS
    finally:
        for module in (pipe.unet, pipe.text_encoder, pipe.vae):
            delattr(module, libraries.HOOK)
    assert libraries.execution_device(pipe) == torch.device("cpu")


def test_a_pipeline_tells_when_its_call_ends(painter: Any) -> None:
    pipe, call = painter
    ends: list[bool] = []
    pipe.__dict__[libraries.END_OF_CALL] = lambda: ends.append(True)
    try:
        pipe(**{**call, "num_inference_steps": 1})
    finally:
        del pipe.__dict__[libraries.END_OF_CALL]
    assert ends == [True], VERSIONS


def test_a_pipeline_can_forget_its_device_map(painter: Any) -> None:
    assert callable(getattr(painter[0], libraries.RESET_DEVICE_MAP)), VERSIONS
    assert getattr(painter[0], libraries.DEVICE_MAP, None) is None


def test_a_vae_encodes_and_decodes_through_two_methods(painter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vae = painter[0].vae
    called: list[str] = []
    for name in libraries.VAE_METHODS:
        method = getattr(vae, name)
        monkeypatch.setitem(
            vae.__dict__, name, lambda *a, _method=method, _name=name, **k: (called.append(_name), _method(*a, **k))[1]
        )
    with torch.no_grad():
        latents = vae.encode(torch.zeros(1, 3, 16, 16)).latent_dist.mode()
        vae.decode(latents)
    assert set(called) <= set(libraries.VAE_METHODS)
    assert "_decode" in called, VERSIONS


def test_denoising_models_take_ip_adapters_through_one_method() -> None:
    for cls in (diffusers.UNet2DConditionModel, diffusers.FluxTransformer2DModel, diffusers.SD3Transformer2DModel):
        assert callable(getattr(cls, libraries.LOAD_IP_ADAPTER)), VERSIONS


def test_the_hooks_of_diffusers_keep_the_forward_that_they_wrap_where_it_is_looked_for() -> None:
    for hook in (diffusers.hooks.ModelHook(), Doubling()):
        part = torch.nn.Linear(2, 2)
        assert libraries.wrapped_forward(part) is None
        registry = diffusers.hooks.HookRegistry.check_if_exists_or_initialize(part)
        registry.register_hook(hook, "first")
        registry.register_hook(diffusers.hooks.ModelHook(), "second")
        place = libraries.wrapped_forward(part)
        assert place is not None, VERSIONS
        assert getattr(*place) == torch.nn.Linear.forward.__get__(part), VERSIONS
        setattr(*place, lambda x: x + 1)
        assert part(torch.ones(1)) == (4 if isinstance(hook, Doubling) else 2), VERSIONS
        registry.remove_hook("second")
        registry.remove_hook("first")
        assert libraries.wrapped_forward(part) is None, VERSIONS
        assert part(torch.ones(1)) == 2, VERSIONS


def test_it_is_known_whose_weights_diffusers_moves_by_groups() -> None:
    part = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert not libraries.is_group_offloaded(part), VERSIONS
    registry = diffusers.hooks.HookRegistry.check_if_exists_or_initialize(part[0])
    registry.register_hook(diffusers.hooks.ModelHook(), group_offloading._GROUP_OFFLOADING)
    assert libraries.is_group_offloaded(part), VERSIONS


class Doubling(diffusers.hooks.ModelHook):  # type: ignore[misc]
    """A hook that calls the function it wraps itself."""

    def new_forward(self, module: Any, *args: Any) -> Any:
        return self.fn_ref.original_forward(*args) * 2


def test_a_class_names_the_parts_that_stay_in_float32() -> None:
    class One(diffusers.ModelMixin):
        _keep_in_fp32_modules = "norm"

    class Two(diffusers.ModelMixin):
        _keep_in_fp32_modules = ("norm", "scale")

    assert libraries.float32_parts(diffusers.ModelMixin) == (), VERSIONS
    assert libraries.float32_parts(One) == ("norm",)
    assert libraries.float32_parts(Two) == ("norm", "scale")
    assert libraries.float32_parts(diffusers.WanTransformer3DModel), VERSIONS


def test_weights_of_old_names_get_their_new_ones(painter: Any) -> None:
    vae = painter[0].vae
    new = "decoder.mid_block.attentions.0.to_q.weight"
    old = "decoder.mid_block.attentions.0.query.weight"
    state = {(old if name == new else name): tensor for name, tensor in vae.state_dict().items()}
    assert old in state
    libraries.update_old_names(vae, state)
    assert new in state, VERSIONS


def test_published_layouts_have_converters() -> None:
    for name in ("FluxTransformer2DModel", "SD3Transformer2DModel", "UNet2DConditionModel", "AutoencoderKL"):
        assert callable(libraries.converter_of(name)), f"{name}, {VERSIONS}"
    assert libraries.converter_of("Linear") is None


def test_a_published_checkpoint_is_recognized_by_its_names() -> None:
    names = ("double_blocks.0.img_attn.norm.key_norm.scale", "guidance_in.in_layer.bias")
    flux = {name: torch.empty(1, device="meta") for name in names}
    flux["img_in.weight"] = torch.empty(1, 64, device="meta")
    assert "flux" in (libraries.published_as(flux) or "").lower(), VERSIONS
    assert libraries.published_as({"x": torch.empty(1, device="meta")}) is None


@pytest.mark.parametrize(
    ("quiet", "logger", "said"),
    [
        ("quiet_assembly", "diffusers.pipelines.pipeline_loading_utils", "cannot verify whether it is"),
        ("quiet_lora_loading", "diffusers.loaders.peft", "No LoRA keys associated"),
        ("quiet_conversion", "diffusers.loaders.single_file_utils", "anything"),
    ],
)
def test_remarks_are_silenced_for_a_while_only(quiet: str, logger: str, said: str) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        with getattr(libraries, quiet)():
            logging.getLogger(logger).error(said)
        logging.getLogger(logger).error("later: %s", said)
    finally:
        logging.getLogger(logger).removeHandler(handler)
    assert heard == [f"later: {said}"]


def test_a_pipeline_names_the_components_that_take_loras(painter: Any) -> None:
    assert set(libraries.components_for_loras(painter[0])) == {"unet", "text_encoder"}, VERSIONS
    assert libraries.components_for_loras(object()) == []


def test_a_transformers_model_names_the_weights_that_stay_in_float32() -> None:
    config = transformers.T5Config(
        vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu"
    )
    module = transformers.T5EncoderModel(config)
    assert set(libraries.dtype_exceptions(module, torch.float16).values()) == {torch.float32}, VERSIONS
    assert any("wo" in pattern for pattern in libraries.dtype_exceptions(module, torch.float16))


def test_the_parts_of_a_configuration_are_found() -> None:
    assert len(libraries.configs_in(transformers.CLIPConfig())) == 3, VERSIONS
    assert len(libraries.configs_in(transformers.T5Config())) == 1


def test_transformers_renames_what_older_releases_wrote() -> None:
    module = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
        )
    )
    own = list(module.state_dict())
    assert libraries.names_after_loading(module, own) == {name: name for name in own}, VERSIONS


def test_an_initialized_tensor_keeps_its_values() -> None:
    tensor = libraries.mark_initialized(torch.full((2,), 7.0))
    initialization.normal_(tensor)
    assert tensor.tolist() == [7.0, 7.0], VERSIONS


def test_a_language_model_returns_caches_and_an_encoder_none() -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    small = dict.fromkeys(sizes, 1) | {"vocab_size": 9, "hidden_size": 8}
    llama = transformers.LlamaModel(transformers.LlamaConfig(**small, num_key_value_heads=1))
    bert = transformers.BertModel(transformers.BertConfig(**small))
    assert libraries.returns_caches(llama)
    assert not libraries.returns_caches(bert)


def test_a_call_by_code_of_diffusers_is_told_from_one_of_a_person() -> None:
    assert not libraries.is_called_by_diffusers()
    theirs = {"__name__": "diffusers.pipelines.any", "asked": libraries.is_called_by_diffusers}
    assert eval("asked()", theirs)


def test_the_parts_of_a_lora_layer_are_found(lora_layer: Any) -> None:
    assert libraries.is_plain_lora(lora_layer), VERSIONS
    assert libraries.has_lora(lora_layer, "one")
    assert not libraries.has_lora(lora_layer, "two")
    down, up = libraries.lora_parts(lora_layer, "one")
    assert down["weight"].shape == (2, 4)
    assert up["weight"].shape == (4, 2)
    assert up["bias"] is None
    assert not libraries.is_plain_lora(torch.nn.Linear(4, 4))


def test_a_lora_with_magnitudes_is_not_plain() -> None:
    config = peft.LoraConfig(r=2, target_modules=["0"], use_dora=True)
    model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4)), config)
    assert not libraries.is_plain_lora(model.base_model.model[0]), VERSIONS


def test_peft_says_which_adapters_it_would_merge(lora_layer: Any) -> None:
    assert libraries.adapters_to_merge(lora_layer, None) == ["one"], VERSIONS
    lora_layer.merged_adapters.append("one")
    assert libraries.adapters_to_merge(lora_layer, ["one"]) == []


def test_other_adapters_are_other_objects() -> None:
    model = peft.get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(4, 4)), peft.LoraConfig(r=2, target_modules=["0"]), adapter_name="one"
    )
    before = libraries.adapter_configs(model)
    again = libraries.adapter_configs(model)
    assert all(new is old for new, old in zip(before, again, strict=True))
    model.add_adapter("two", peft.LoraConfig(r=2, target_modules=["0"]))
    assert len(libraries.adapter_configs(model)) > len(before), VERSIONS
    assert libraries.adapter_configs(torch.nn.Linear(1, 1)) == (None,)


def test_components_have_the_methods_that_pipelines_call_beside_forward() -> None:
    from diffusers.pipelines.stable_diffusion import StableUnCLIPImageNormalizer

    kinds = (StableUnCLIPImageNormalizer, diffusers.PriorTransformer)
    assert all(any(callable(getattr(kind, name, None)) for kind in kinds) for name in libraries.OWN_METHODS)


def test_accelerate_is_asked_before_it_hooks_a_module() -> None:
    from accelerate import big_modeling, hooks

    asked: list[torch.nn.Module] = []
    before = hooks.add_hook_to_module
    own = getattr(before, "__wrapped__", before)
    hooks.add_hook_to_module = big_modeling.add_hook_to_module = own
    try:
        libraries.when_hooked(asked.append)
        layer = torch.nn.Linear(2, 2)
        big_modeling.cpu_offload(layer, torch.device("cpu"))
    finally:
        hooks.add_hook_to_module = big_modeling.add_hook_to_module = before
    assert asked
    assert set(asked) == {layer}


def test_layerwise_casting_says_which_classes_it_casts_and_what_it_skips() -> None:
    model = diffusers.AutoencoderKL()
    classes, skipped = libraries.layerwise_casting(model)
    assert {torch.nn.Linear, torch.nn.Conv2d, torch.nn.Embedding} <= set(classes), VERSIONS
    assert {"norm", "pos_embed"} <= set(skipped)


def test_a_config_of_quantization_says_which_components_it_is_for() -> None:
    config = diffusers.PipelineQuantizationConfig(
        quant_mapping={"transformer": diffusers.BitsAndBytesConfig(load_in_8bit=True)}
    )
    assert libraries.is_quantized_by(config, "diffusers", "transformer"), VERSIONS
    assert not libraries.is_quantized_by(config, "transformers", "text_encoder")


def test_attention_takes_a_backend_in_one_model_alone_and_says_what_it_lacks() -> None:
    assert {"native", "flex", "_native_math", "sage"} <= set(libraries.attention_backends()), VERSIONS
    assert not libraries.lacks_attention("native")
    pipe, _ = tiny_pipelines.flux()
    processors, before = libraries.attention_processors(pipe.transformer), libraries.default_attention()
    assert processors
    assert libraries.attention_processors(pipe.vae.encoder) == []
    libraries.set_attention(pipe.transformer, "_native_math")
    assert {one._attention_backend.value for one in processors} == {"_native_math"}, VERSIONS
    assert libraries.default_attention() == before


@pytest.mark.parametrize("config", [libraries.first_block_cache(0.1), libraries.taylorseer_cache(3)])
def test_caches_are_put_on_a_model_and_taken_off_again(config: Any) -> None:
    pipe, _ = tiny_pipelines.flux()
    libraries.enable_cache(pipe.transformer, config)
    assert libraries.cache_of(pipe.transformer) is config
    assert libraries.cached_parts(pipe.transformer), VERSIONS
    assert libraries.hooks_of_cache(pipe.transformer)
    libraries.reset_cache(pipe.transformer)
    libraries.disable_cache(pipe.transformer)
    assert libraries.cache_of(pipe.transformer) is None
    assert not libraries.hooks_of_cache(pipe.transformer)
    pipe.transformer.single_transformer_blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    with pytest.raises(Exception, match=r"."):
        libraries.enable_cache(pipe.transformer, libraries.first_block_cache(0.1))
    assert libraries.cache_of(pipe.transformer) is None
    assert not libraries.hooks_of_cache(pipe.transformer)
