"""Tiny autoencoders of pictures, video and audio, encoders and decoders apart."""

from __future__ import annotations

from .tiny import tiny_vae

KL = dict(
    block_out_channels=(8, 16),
    in_channels=3,
    out_channels=3,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
    latent_channels=4,
    norm_num_groups=4,
    layers_per_block=2,
)
VIDEO = dict(in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1)

tiny_vae("AutoencoderKL", KL, (2, 3, 16, 16), (2, 4, 8, 8))
tiny_vae("AutoencoderKL-bare", dict(KL, use_quant_conv=False, use_post_quant_conv=False), None, (1, 4, 8, 8))
tiny_vae(
    "AsymmetricAutoencoderKL",
    dict(
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * 2,
        down_block_out_channels=[4, 8],
        layers_per_down_block=1,
        up_block_types=["UpDecoderBlock2D"] * 2,
        up_block_out_channels=[4, 8],
        layers_per_up_block=1,
        latent_channels=4,
        norm_num_groups=2,
        sample_size=16,
    ),
    (2, 3, 16, 16),
    None,
)
tiny_vae(
    "AutoencoderKLTemporalDecoder",
    dict(
        block_out_channels=[32, 64],
        down_block_types=["DownEncoderBlock2D"] * 2,
        latent_channels=4,
        layers_per_block=2,
    ),
    None,
    (2, 4, 8, 8),
    num_frames=lambda draw: 2,
)
tiny_vae(
    "AutoencoderTiny",
    dict(
        encoder_block_out_channels=(16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    ),
    (2, 3, 16, 16),
    (2, 4, 8, 8),
)
tiny_vae(
    "VQModel",
    dict(
        block_out_channels=[8, 16],
        norm_num_groups=8,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=3,
    ),
    (2, 3, 16, 16),
    (2, 3, 8, 8),
)
tiny_vae(
    "AutoencoderDC",
    dict(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 2),
        decoder_layers_per_block=[1, 2],
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
    ),
    (1, 3, 16, 16),
    (1, 4, 8, 8),
)
tiny_vae(
    "AutoencoderKLWan",
    dict(base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]),
    (1, 3, 5, 16, 16),
    (1, 4, 2, 2, 2),
)
tiny_vae(
    "AutoencoderKLQwenImage",
    dict(base_dim=4, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1, temperal_downsample=[False, True, True]),
    (1, 3, 1, 16, 16),
    (1, 4, 1, 2, 2),
)
tiny_vae(
    "AutoencoderKLLTXVideo",
    dict(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(16, 32, 64),
        layers_per_block=(1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, True, False),
        decoder_spatio_temporal_scaling=(True, True, True),
        decoder_inject_noise=(False,) * 4,
        upsample_residual=(True, True, True),
        upsample_factor=(2, 2, 2),
        timestep_conditioning=True,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    ),
    (1, 3, 9, 16, 16),
    (1, 8, 2, 2, 2),
    temb=lambda draw: draw.float(1),
)
tiny_vae(
    "AutoencoderKLCosmos",
    dict(
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 8, 8),
        decode_block_out_channels=(8, 8, 8, 8),
        attention_resolutions=(8,),
        resolution=64,
        num_layers=2,
        patch_size=4,
        patch_type="haar",
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
    ),
    (1, 3, 9, 16, 16),
    (1, 4, 3, 2, 2),
)
tiny_vae(
    "AutoencoderKLHunyuanVideo",
    dict(
        VIDEO,
        down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4,
        norm_num_groups=4,
    ),
    (1, 3, 9, 16, 16),
    (1, 4, 3, 2, 2),
)
tiny_vae(
    "AutoencoderKLCogVideoX",
    dict(
        VIDEO,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    ),
    (1, 3, 8, 16, 16),
    (1, 4, 2, 2, 2),
)
tiny_vae(
    "AutoencoderKLMochi",
    dict(
        in_channels=15,
        out_channels=3,
        latent_channels=4,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
        scaling_factor=1,
    ),
    None,
    (1, 4, 1, 2, 2),
)
tiny_vae(
    "AutoencoderOobleck",
    dict(
        encoder_hidden_size=12,
        decoder_channels=12,
        decoder_input_channels=6,
        audio_channels=2,
        downsampling_ratios=[2, 4],
        channel_multiples=[1, 2],
    ),
    (1, 2, 24),
    (1, 6, 3),
)
tiny_vae(
    "AutoencoderKLLTX2Audio",
    dict(
        in_channels=2,
        output_channels=2,
        latent_channels=4,
        base_channels=8,
        ch_mult=(1, 2, 4),
        resolution=16,
        attn_resolutions=None,
        num_res_blocks=2,
        norm_type="pixel",
        causality_axis="height",
        mid_block_add_attention=False,
        mel_bins=16,
        is_causal=True,
        double_z=True,
    ),
    (1, 2, 8, 16),
    (1, 4, 2, 4),
)
