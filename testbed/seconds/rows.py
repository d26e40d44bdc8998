"""Published seconds of one card: what was computed, on which card, where it stands, and what explains a miss."""

from __future__ import annotations

from dataclasses import dataclass

BF16, FP16 = "bfloat16", "float16"


@dataclass(frozen=True)
class Row:
    """A published measurement.

    ``parts`` are what was computed, each with how often; ``fitted`` says that the table of cards was fitted on it, and
    ``cause`` why it is off by more than the range that is printed.
    """

    card: str
    what: str
    seconds: float
    parts: tuple[tuple[str, int], ...]
    source: str
    dtype: str = BF16
    fitted: bool = False
    cause: str = ""


def _picture(denoiser: str, steps: int, decoder: str) -> tuple[tuple[str, int], ...]:
    return (denoiser, steps), (decoder, 1)


FLUX28, FLUX50 = _picture("flux-dev", 28, "dec-flux"), _picture("flux-dev", 50, "dec-flux")
XL30, XL50 = _picture("sdxl-unet-2", 30, "dec-sdxl"), _picture("sdxl-unet-2", 50, "dec-sdxl")
DIT100 = _picture("hunyuandit-2", 100, "dec-sdxl")
VIDEO50 = (("hunyuan-video-129", 50),)  # 960² has as many tokens as 720p
I2V = (("wan2.1-i2v-14b-480", 2),)
STEP, STEP768, STEP720 = (("flux-dev", 1),), (("flux-dev-768", 1),), (("flux-dev-1024x720", 1),)

XDIT = "https://github.com/xdit-project/xDiT/blob/main/docs/performance/"
PARA = "https://github.com/chengzeyi/ParaAttention"
PARA_DOC = "https://huggingface.co/docs/diffusers/optimization/para_attn"
STAGE = "https://huggingface.co/TheStageAI/Elastic-FLUX.1-dev"
STABILITY = "https://huggingface.co/stabilityai/stable-diffusion-xl-1.0-tensorrt"
X2V = "https://github.com/ModelTC/LightX2V"
COG = "https://huggingface.co/THUDM/CogVideoX-5b"
COG15 = "https://huggingface.co/THUDM/CogVideoX1.5-5B"
DIT = "https://huggingface.co/Tencent-Hunyuan/Distillation-v1.2"
FAL = "https://github.com/fal-ai/stable-diffusion-benchmarks"
FP8 = "https://github.com/aredden/flux-fp8-api"
# Its README says L40; the rows exceed what the data sheet of an L40 has, and 128 GB are those of a machine of an L40S.
HF = "https://huggingface.co/datasets/diffusers/benchmarks/blob/7b8aaacf07f2e950bed960dcddc41d2c4d3cc47b"
CACHE_DIT = "https://github.com/vipshop/cache-dit"
SAYAK = "https://huggingface.co/datasets/sayakpaul/sample-datasets/blob/8285f7668326f13af8d213cd8087218cd7f97483"
STABLE_FAST_README = "https://github.com/chengzeyi/stable-fast"
COMFY = "https://github.com/Comfy-Org/ComfyUI/issues/7332"
STABLE_FAST = "https://github.com/chengzeyi/stable-fast/issues/63"

_PYTHON = "bound by the launches of a small model from Python, which is another on every processor"

_UNFUSED = "flash attention is an extra there, which the row does not name, and CUDA is 11.7 or 12.1"

ROWS: tuple[Row, ...] = (
    Row("H100", "FLUX.1-dev, 1024², 28 steps", 6.71, FLUX28, f"{XDIT}flux.md", fitted=True),
    Row("H100", "HunyuanVideo, 720p, 129 frames, 50 steps", 1904.08, (("hunyuan-video-129", 50),),
        f"{XDIT}hunyuanvideo.md", fitted=True),
    Row("H100", "FLUX.1-dev, 1024², 28 steps", 6.46, FLUX28, STAGE),
    Row("H100", "SDXL, 1024², 30 steps", 2.496, XL30, STABILITY, FP16, cause=_PYTHON),
    Row("H100", "Wan 2.1 I2V 14B, 480p, 81 frames, a step (diffusers)", 9.77, I2V, X2V),
    Row("H100", "Wan 2.1 I2V 14B, 480p, 81 frames, a step (xDiT)", 8.93, I2V, X2V),
    Row("H100", "CogVideoX-5B, 720×480, 49 frames, 50 steps", 90, (("cogvideox-5b-2", 50),), COG15),
    Row("H100", "CogVideoX1.5-5B, 1360×768, 81 frames, 50 steps", 550, (("cogvideox1.5-5b-2", 50),), COG15,
        cause="the decoder is not in it, and its source offloads weights"),
    Row("H800", "HunyuanDiT, 1024², 100 steps", 28, DIT100, DIT, FP16, cause=_UNFUSED),
    Row("A100-SXM4-80GB", "FLUX.1-dev, 1024², 28 steps", 13.843, FLUX28, PARA, fitted=True),
    Row("A100", "FLUX.1-dev, 1024², 50 steps", 23, FLUX50,
        "https://github.com/modelscope/DiffSynth-Studio, examples/TeaCache"),
    Row("A100-SXM4-80GB", "SDXL, 1024², 30 steps", 3.315, XL30, f"{SAYAK}/collated_results_sdxl.csv"),
    Row("A100", "SDXL, 1024², 30 steps", 3.704, XL30, STABILITY, FP16),
    Row("A100-SXM4-80GB", "SDXL, 1024², 50 steps", 5.933, XL50, FAL, FP16),
    Row("A100-SXM4-80GB", "SD1.5, 512², 50 steps", 1.591, _picture("sd15-unet-2", 50, "dec-sd15"), FAL, FP16,
        cause=_PYTHON),
    Row("A100", "CogVideoX-5B, 720×480, 49 frames, 50 steps", 180, (("cogvideox-5b-2", 50),), COG15),
    Row("A100", "CogVideoX-2B, 720×480, 49 frames, 50 steps", 90, (("cogvideox-2b-2", 50),), COG, FP16),
    Row("A100", "CogVideoX1.5-5B, 1360×768, 81 frames, 50 steps", 1000, (("cogvideox1.5-5b-2", 50),), COG15),
    Row("A100", "HunyuanDiT, 1024², 100 steps", 54, DIT100, DIT, FP16, cause=_UNFUSED),
    Row("L20", "FLUX.1-dev, 1024², 28 steps", 26.36, FLUX28, PARA_DOC, fitted=True),
    Row("L20", "HunyuanVideo, 720p, 129 frames, 30 steps", 3675.71, (("hunyuan-video-129", 30),), PARA_DOC,
        fitted=True),
    Row("L20", "FLUX.1-dev, 1024², 28 steps", 23.56, FLUX28, CACHE_DIT),
    Row("H100", "HunyuanVideo, 960², 129 frames, 50 steps", 1735.01, VIDEO50, f"{XDIT}hunyuanvideo.md"),
    Row("H20", "HunyuanVideo, 720p, 129 frames, 50 steps", 6639.17, VIDEO50, f"{XDIT}hunyuanvideo.md", fitted=True),
    Row("H20", "HunyuanVideo, 960², 129 frames, 50 steps", 6621.46, VIDEO50, f"{XDIT}hunyuanvideo.md"),
    Row("L20", "HunyuanVideo, 960², 129 frames, 50 steps", 6039.08, VIDEO50, f"{XDIT}hunyuanvideo.md"),
    Row("L20", "HunyuanVideo, 720p, 129 frames, 50 steps", 6043.88, (("hunyuan-video-129", 50),),
        f"{XDIT}hunyuanvideo.md"),
    Row("L40S", "FLUX.1-dev, 1024², a step", 0.503, STEP, f"{HF}/collated_results.csv", fitted=True),
    Row("L40S", "FLUX.1-dev, 1024², 28 steps", 16, FLUX28, STAGE),
    Row("L40S", "LTX-Video 0.9.7 13B, 704×512, 161 frames, a step", 1.439, (("ltx-161f", 1),),
        f"{HF}/collated_results.csv"),
    Row("L40S", "SDXL, 1024², a step without guidance", 0.071, (("sdxl-unet", 1),), f"{HF}/collated_results.csv"),
    Row("L40S", "Wan 2.1 T2V 1.3B, 480p, 81 frames, 50 steps", 180, (("wan2.1-1.3b", 100),),
        "https://huggingface.co/spaces/SeedOfEvil/Wan2.1-T2V-1.3B-Local/discussions/1"),
    Row("RTX 4090", "FLUX.1-dev, 1024², a step", 1 / 1.70, STEP, FP8, fitted=True),
    Row("RTX 4090", "FLUX.1-dev, 768², a step", 1 / 2.32, STEP768, FP8,
        cause="the source has the smaller picture slower: its two rows seem exchanged"),
    Row("RTX 4090", "FLUX.1-dev, 1024×720, a step", 1 / 3.01, STEP720, FP8,
        cause="the source has the smaller picture slower: its two rows seem exchanged"),
    Row("RTX 4090", "Wan 2.1 T2V 1.3B, 480p, 81 frames, 50 steps", 240, (("wan2.1-1.3b", 100),),
        "https://huggingface.co/Wan-AI/Wan2.1-T2V-1.3B"),
    Row("RTX 4090", "HunyuanDiT, 1024², 100 steps", 54, DIT100, DIT, FP16, cause=_UNFUSED),
    Row("RTX 4090 D", "Wan 2.1 I2V 14B, 480p, 81 frames, a step (diffusers)", 30.5, I2V, X2V),
    Row("RTX 6000 Ada", "FLUX.1-dev, 1024², a step", 1 / 1.74, STEP, FP8, fitted=True),
    Row("RTX 6000 Ada", "FLUX.1-dev, 768², a step", 1 / 3.01, STEP768, FP8),
    Row("RTX 6000 Ada", "FLUX.1-dev, 1024×720, a step", 1 / 2.37, STEP720, FP8),
    Row("RTX 3090", "HunyuanDiT, 1024², 100 steps", 98, DIT100, DIT, FP16, cause=_UNFUSED),
    Row("RTX 3060", "SDXL, 832×1216, 4 pictures, a step", 2.78, (("sdxl-unet-8-832", 1),), STABLE_FAST, FP16),
    Row("RTX 4060 Ti", "SDXL, 832×1216, 4 pictures, a step", 1.86, (("sdxl-unet-8-832", 1),), STABLE_FAST, FP16),
    Row("RX 6900 XT", "SDXL, 1024², a step", 1 / 1.62, (("sdxl-unet-2", 1),), COMFY, FP16, fitted=True),
    Row("RX 9070 XT", "SDXL, 1024², a step", 1 / 1.03, (("sdxl-unet-2", 1),), COMFY, FP16,
        cause="a first driver: the source complains that it is slower than an RX 6900 XT"),
    Row("RTX 4080", "SD1.5, 512², a step", 1 / 29.5, (("sd15-unet-2", 1),), STABLE_FAST_README, FP16, cause=_PYTHON),
    Row("RTX 4080", "SDXL, 512², a step", 1 / 17.1, (("sdxl-unet-2-512", 1),), STABLE_FAST_README, FP16, cause=_PYTHON),
    Row("RTX 4090", "SD1.5, 512², a step", 1 / 24.9, (("sd15-unet-2", 1),), STABLE_FAST_README, FP16, cause=_PYTHON),
    Row("RTX 3080 Ti", "SD1.5, 512², a step", 1 / 19.3, (("sd15-unet-2", 1),), STABLE_FAST_README, FP16, cause=_PYTHON),
    Row("RTX 3090", "SD1.5, 512², a step", 1 / 22.5, (("sd15-unet-2", 1),), STABLE_FAST_README, FP16, cause=_PYTHON),
    Row("A10", "SDXL, 1024², 30 steps", 9.399, XL30, STABILITY, FP16),
    Row("B200", "FLUX.1-dev, 1024², 28 steps", 4.4, FLUX28, STAGE, fitted=True),
)  # fmt: skip
"""What was found for whole models on one card as PyTorch is, whether it fits or not."""
