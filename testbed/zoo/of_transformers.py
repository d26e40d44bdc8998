"""A hundred classes of transformers, tiny, with calls of two sizes that ask for all that they return.

``CASES[name]`` builds a module with random weights, and makes the arguments of a call for a seed and one of two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from .tiny import Call, Draw, draw_weights

Arguments = Callable[[Draw, int], Call]
"""The arguments of a call, smaller (0) or larger (1)."""


@dataclass(frozen=True)
class Case:
    """One class with a config and the calls of it; ``attention`` is the implementation of it that it runs with."""

    name: str
    config: Mapping[str, Any]
    arguments: Arguments
    attention: str | None = None

    def build(self) -> nn.Module:
        """The module in eval mode, with its weights drawn."""
        torch.manual_seed(0)
        cls = getattr(transformers, self.name)
        config = cls.config_class(**self.config)
        module: nn.Module = (
            cls._from_config(config, attn_implementation=self.attention) if self.attention else cls(config)
        )
        draw_weights(module)
        return module.eval()

    def call(self, seed: int, size: int) -> Call:
        """The arguments of a call whose values follow from the seed."""
        return self.arguments(Draw(torch.float32, seed), size)


CASES: dict[str, Case] = {}
_LENGTHS = (9, 13)
_WAVE = (1600, 2400)


def _add(arguments: Arguments, configs: Mapping[str, Mapping[str, Any]], attention: str | None = None) -> None:
    for name, config in configs.items():
        CASES[name] = Case(name, config, arguments, attention)


def _text(draw: Draw, size: int) -> Call:
    length = _LENGTHS[size]
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, length - 2 :] = 0
    return dict(input_ids=3 + draw.ids(90, 2, length), attention_mask=mask, output_hidden_states=True)


def _attentions(draw: Draw, size: int) -> Call:
    return {**_text(draw, size), "output_attentions": True}


def _without_mask(draw: Draw, size: int) -> Call:
    return dict(input_ids=3 + draw.ids(90, 2, _LENGTHS[size]), output_hidden_states=True)


def _cached(draw: Draw, size: int) -> Call:
    return {**_text(draw, size), "use_cache": True}


def _both(draw: Draw, size: int) -> Call:
    return {**_text(draw, size), "decoder_input_ids": 3 + draw.ids(90, 2, 5 + size)}


def _picture(draw: Draw, size: int) -> Call:
    """The size is that of the batch: these take pictures of one size."""
    return dict(pixel_values=draw(1 + size, 3, 32, 32), output_hidden_states=True)


def _seen(draw: Draw, size: int) -> Call:
    return {**_picture(draw, size), "output_attentions": True}


def _sized(draw: Draw, size: int) -> Call:
    edge = (32, 48)[size]
    return dict(pixel_values=draw(1, 3, edge, edge), output_hidden_states=True)


def _wave(draw: Draw, size: int) -> Call:
    return dict(input_values=draw(1, _WAVE[size]), output_hidden_states=True)


HEADS = dict(num_hidden_layers=3, num_attention_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
SMALL = dict(HEADS, vocab_size=99, hidden_size=32, intermediate_size=64, max_position_embeddings=64)
GROUPED = dict(SMALL, num_key_value_heads=2)
HEADED = dict(GROUPED, head_dim=8)
OLD = dict(HEADS, vocab_size=99, hidden_size=32, max_position_embeddings=64)
EXPERTS = dict(HEADED, num_local_experts=4, num_experts_per_tok=2)
MOE = dict(HEADED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)

_add(
    _text,
    {
        "LlamaModel": GROUPED,
        "Qwen2Model": GROUPED,
        "GemmaModel": HEADED,
        "Gemma3TextModel": dict(HEADED, sliding_window=4),
        "Phi3Model": GROUPED,
        "Starcoder2Model": GROUPED,
        "CohereModel": GROUPED,
        "OlmoModel": GROUPED,
        "GraniteModel": GROUPED,
        "GPT2Model": dict(HEADS, vocab_size=99, n_embd=32, n_positions=64, n_inner=64),
        "GPTNeoXModel": SMALL,
        "OPTModel": dict(OLD, ffn_dim=64, word_embed_proj_dim=32),
        "FalconModel": dict(OLD, new_decoder_architecture=False),
        "HeliumModel": HEADED,
        "Glm4Model": HEADED,
        "SmolLM3Model": GROUPED,
        "NemotronModel": HEADED,
        "MixtralForCausalLM": EXPERTS,
        "Qwen3MoeModel": MOE,
        "GraniteMoeModel": EXPERTS,
        "DeepseekV3Model": dict(
            SMALL, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8,
            v_head_dim=8, first_k_dense_replace=1,
        ),
        "GptOssModel": dict(EXPERTS, sliding_window=4),
        "Qwen3NextModel": dict(
            MOE, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "OlmoeModel": MOE,
        "Gemma3nTextModel": dict(
            HEADED, num_hidden_layers=4, hidden_size_per_layer_input=8, vocab_size_per_layer_input=99, laurel_rank=4,
            num_kv_shared_layers=2, sliding_window=4, activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "RecurrentGemmaModel": dict(
            HEADED, lru_width=32, attention_window_size=8, block_types=["recurrent", "recurrent", "attention"]
        ),
        "JambaModel": dict(
            GROUPED, num_experts=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
            expert_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
        ),
    },
)  # fmt: skip
_add(
    _cached,
    {
        "MistralModel": dict(GROUPED, sliding_window=None),
        "Qwen3Model": HEADED,
        "Gemma2Model": dict(HEADED, sliding_window=4),
        "PhiModel": GROUPED,
        "StableLmModel": GROUPED,
        "Cohere2Model": dict(HEADED, sliding_window=4),
        "Olmo2Model": GROUPED,
        "GPTJModel": dict(HEADS, vocab_size=99, n_embd=32, n_positions=64, rotary_dim=4, n_inner=64),
        "BloomModel": dict(OLD, n_head=4, n_layer=3),
        "PersimmonModel": SMALL,
        "Exaone4Model": dict(HEADED, sliding_window=4, layer_types=["sliding_attention"] * 2 + ["full_attention"]),
        "ArceeModel": GROUPED,
    },
)
_add(
    _attentions,
    {
        "Ernie4_5Model": HEADED,
        "GlmModel": HEADED,
        "Qwen2MoeModel": dict(MOE, decoder_sparse_step=1),
        "BertModel": SMALL,
        "ElectraModel": dict(SMALL, embedding_size=16),
        "T5EncoderModel": dict(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4),
        "CLIPTextModel": SMALL,
        "SiglipTextModel": SMALL,
    },
    attention="eager",
)
_add(
    _without_mask,
    {
        "MambaModel": dict(HEADS, vocab_size=99, hidden_size=32, state_size=4, time_step_rank=4),
        "Mamba2Model": dict(HEADS, vocab_size=99, hidden_size=32, state_size=4, num_heads=8, head_dim=8, n_groups=2),
        "RwkvModel": dict(vocab_size=99, hidden_size=32, attention_hidden_size=32, num_hidden_layers=3),
        "FNetModel": SMALL,
        "CodeGenModel": dict(HEADS, vocab_size=99, n_embd=32, n_positions=64, n_ctx=64, rotary_dim=4, n_inner=64),
        "MptModel": dict(vocab_size=99, d_model=32, n_heads=4, n_layers=3, max_seq_len=64),
    },
)
_add(
    _text,
    {
        "RobertaModel": dict(SMALL, max_position_embeddings=80),
        "AlbertModel": dict(SMALL, embedding_size=16),
        "DistilBertModel": dict(
            vocab_size=99, dim=32, hidden_dim=64, n_layers=3, n_heads=4, max_position_embeddings=64
        ),
        "DebertaV2Model": dict(SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
        "MPNetModel": SMALL,
        "ConvBertModel": dict(SMALL, embedding_size=32),
        "FunnelModel": dict(vocab_size=99, block_sizes=[1, 2], d_model=32, n_head=4, d_head=8, d_inner=64),
        "SqueezeBertModel": dict(SMALL, embedding_size=32),
        "RoFormerModel": dict(SMALL, embedding_size=32),
        "LongformerModel": dict(SMALL, attention_window=4),
        "XLNetModel": dict(vocab_size=99, d_model=32, n_layer=3, n_head=4, d_inner=64),
        "ModernBertModel": dict(SMALL, local_attention=4, cls_token_id=1, sep_token_id=2),
        "EsmModel": SMALL,
        "ClapTextModel": dict(SMALL, projection_dim=16),
        "UMT5EncoderModel": dict(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4),
        "MT5EncoderModel": dict(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4),
    },
)
T5 = dict(
    vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0
)
BART = dict(
    vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=2,
)  # fmt: skip
_add(
    _both,
    {
        "T5Model": T5,
        "SwitchTransformersModel": dict(T5, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
        "BartModel": BART,
        "MBartModel": BART,
        "PegasusModel": BART,
        "MarianModel": BART,
        "BlenderbotSmallModel": BART,
        "M2M100Model": BART,
    },
)

PATCHES = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8
)
STAGES = dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4)
_add(
    _picture,
    {
        "ViTModel": PATCHES,
        "BeitModel": dict(PATCHES, use_relative_position_bias=True),
        "Data2VecVisionModel": dict(PATCHES, use_relative_position_bias=True),
        "SwinModel": STAGES,
        "Swinv2Model": STAGES,
        "ConvNextModel": dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
        "ResNetModel": dict(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
        "RegNetModel": dict(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], groups_width=8),
        "SegformerModel": dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4]),
        "PoolFormerModel": dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
        "MobileNetV2Model": dict(depth_multiplier=0.35),
        "CLIPVisionModel": PATCHES,
        "SiglipVisionModel": PATCHES,
        "BlipVisionModel": PATCHES,
        "PvtModel": dict(
            image_size=32, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4],
            sequence_reduction_ratios=[4, 2, 1, 1],
        ),
        "YolosForObjectDetection": dict(PATCHES, image_size=[32, 32], num_detection_tokens=4),
        "DPTModel": dict(PATCHES, backbone_out_indices=[0, 1, 2, 2]),
        "HieraModel": dict(
            image_size=[32, 32], patch_size=[4, 4], patch_stride=[4, 4], patch_padding=[1, 1], embed_dim=8,
            depths=[1, 2], num_heads=[1, 2], masked_unit_size=[2, 2], query_stride=[2, 2], num_query_pool=1,
            masked_unit_attention=[True, False], embed_dim_multiplier=2.0,
        ),
    },
)  # fmt: skip
_add(_seen, {"DeiTModel": PATCHES, "Dinov2WithRegistersModel": dict(PATCHES, mlp_ratio=2)}, attention="eager")
_add(
    _sized,
    {
        "Dinov2Model": dict(PATCHES, mlp_ratio=2),
        "DINOv3ViTModel": PATCHES,
        "ConvNextV2Model": dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
        "MobileViTModel": dict(
            hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=4,
            patch_size=2,
        ),
        "PixtralVisionModel": dict(
            hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=64,
            patch_size=8, head_dim=16,
        ),
    },
)  # fmt: skip

HEARD = dict(
    HEADS, hidden_size=32, intermediate_size=64, conv_dim=[16, 16], conv_kernel=[10, 3], conv_stride=[5, 2],
    num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, feat_extract_norm="group", num_feat_extract_layers=2,
)  # fmt: skip
_add(
    _wave,
    {
        "Wav2Vec2Model": HEARD,
        "HubertModel": HEARD,
        "WavLMModel": HEARD,
        "UniSpeechModel": HEARD,
        "SEWModel": dict(HEARD, squeeze_factor=2),
    },
)


def _spectrum(draw: Draw, size: int) -> Call:
    return dict(
        input_features=draw(1 + size, 8, 40),
        decoder_input_ids=3 + draw.ids(90, 1 + size, 5),
        output_hidden_states=True,
    )


_add(_spectrum, {"WhisperModel": dict(BART, num_mel_bins=8, max_source_positions=20, max_target_positions=20)})
_add(
    lambda draw, size: dict(input_values=draw(1 + size, 40, 16), output_hidden_states=True),
    {"ASTModel": {**PATCHES, "num_mel_bins": 16, "max_length": 40}},
)

EYES = dict(PATCHES)
MOUTH = dict(GROUPED, image_token_id=98)
TWO = dict(text_config=SMALL, vision_config=PATCHES, projection_dim=16)


def _pair(draw: Draw, size: int) -> Call:
    return {**_text(draw, size), "pixel_values": draw(2, 3, 32, 32)}


_add(_pair, {"CLIPModel": TWO, "SiglipModel": TWO})


def _shown(count: int, token: int = 98, **more: Callable[[Draw], torch.Tensor]) -> Arguments:
    """Text in which so many tokens stand for a picture."""

    def arguments(draw: Draw, size: int) -> Call:
        length = count + _LENGTHS[size]
        ids = 3 + draw.ids(90, 1, length)
        ids[:, 1 : 1 + count] = token
        made = {name: make(draw) for name, make in more.items()}
        return dict(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, **made)

    return arguments


def _image(draw: Draw) -> torch.Tensor:
    return draw(1, 3, 32, 32)


TALK = GROUPED
_add(
    _shown(16, pixel_values=_image),
    {
        "LlavaForConditionalGeneration": dict(
            text_config=dict(TALK, model_type="llama"), vision_config=dict(EYES, model_type="clip_vision_model"),
            image_token_id=98, image_seq_length=16,
        ),
        "Gemma3Model": dict(
            text_config=dict(HEADED, sliding_window=4), vision_config=EYES, image_token_id=98,
            mm_tokens_per_image=16,
        ),
        "PaliGemmaModel": dict(
            text_config=dict(HEADED, model_type="gemma"), vision_config=dict(EYES, projection_dim=32),
            image_token_id=98, projection_dim=32,
        ),
    },
)  # fmt: skip
_add(
    _shown(4, pixel_values=lambda draw: draw(1, 1, 3, 32, 32)),
    {
        "Idefics3Model": dict(
            text_config=dict(TALK, model_type="llama"), vision_config=EYES, image_token_id=98, scale_factor=2,
            pad_token_id=0,
        )
    },
)  # fmt: skip
_GRID = dict(pixel_values=lambda draw: draw(16, 3 * 2 * 8 * 8), image_grid_thw=lambda _: torch.tensor([[1, 4, 4]]))


def _gridded(draw: Draw, size: int) -> Call:
    call = _shown(4, **_GRID)(draw, size)
    return {**call, "mm_token_type_ids": (call["input_ids"] == 98).int()}


_ROTARY = dict(rope_type="default", mrope_section=[1, 1, 2], rope_theta=1e4)
_add(
    _gridded,
    {
        "Qwen2VLModel": dict(
            text_config=dict(GROUPED, rope_parameters=_ROTARY),
            vision_config=dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=8, mlp_ratio=2),
            image_token_id=98, video_token_id=97, vision_start_token_id=96,
        ),
        "Qwen3VLModel": dict(
            text_config=dict(HEADED, rope_parameters=_ROTARY),
            vision_config=dict(
                depth=2, hidden_size=32, intermediate_size=64, num_heads=4, patch_size=8, out_hidden_size=32,
                num_position_embeddings=16, deepstack_visual_indexes=[0, 1],
            ),
            image_token_id=98, video_token_id=97, vision_start_token_id=96,
        ),
    },
)  # fmt: skip
