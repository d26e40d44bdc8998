"""Makes the README's figure: the demo on two simulated devices, and pictures of it: `python -m scripts.split_figure`.

It needs the extras `draw` and `browser`, and a Chromium. Each picture is compared with that of the pipeline before it
was compiled; where one differs in a bit, nothing is written.
"""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path

import torch
from diffusers import FluxPipeline
from jinja2 import Template

import dovetail
from dovetail import demo
from dovetail.draw.graph.svg import svg
from testbed.browser import launched

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "split.png"
BACKEND = "diffusion=sim0&sim1,te=sim1,vae=sim0"
PROMPTS = (
    "a red circle above a blue square",
    "a green triangle right of an orange triangle",
    "a black square above a red circle",
    "a purple circle below an orange triangle",
)
PAGE = Template("""<!doctype html><html data-ready><meta charset="utf-8"><style>
body { margin: 0; padding: 24px; width: 1152px; background: #fff; color: #1c2230; font: 17px system-ui, sans-serif }
svg { width: 100%; height: auto }
div { display: flex; justify-content: space-between; margin-top: 20px }
figure { margin: 0; width: 270px; text-align: center }
img { width: 270px; border: 1px solid #d5d8de; border-radius: 10px }
</style>{{ graph }}<div>{% for prompt, data in pictures %}
<figure><img src="data:image/png;base64,{{ data }}"><figcaption>{{ prompt | e }}</figcaption></figure>{% endfor %}
</div></html>""")


def main() -> None:
    """Paints with one device and with two, compares, and draws."""
    pipe = FluxPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    whole = [_painted(pipe, prompt) for prompt in PROMPTS]
    dovetail.compile_pipeline(pipe, BACKEND)
    split = [_painted(pipe, prompt) for prompt in PROMPTS]
    if not all(map(torch.equal, whole, split)):
        raise SystemExit("the pictures of two devices are not those of one")
    pictures = [(prompt, _png(pipe, picture)) for prompt, picture in zip(PROMPTS, split, strict=True)]
    plan = pipe.dovetail.plan(PROMPTS[0], **demo.CALL_DEFAULTS)
    graph = svg({call.title: call.program for call in plan.calls})
    _write(PAGE.render(graph=graph[graph.index("<svg") :], pictures=pictures))


def _painted(pipe: FluxPipeline, prompt: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return pipe(prompt, generator=generator, output_type="pt", **demo.CALL_DEFAULTS).images[0].cpu().clone()


def _png(pipe: FluxPipeline, picture: torch.Tensor) -> str:
    """The picture four times as large, smooth between its own pixels."""
    (image,) = pipe.image_processor.postprocess(picture[None] * 2 - 1, output_type="pil")
    file = io.BytesIO()
    image.resize((4 * image.width, 4 * image.height), resample=3).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def _write(html: str) -> None:
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        file = Path(folder) / "figure.html"
        file.write_text(html)
        view = browser.new_page(viewport={"width": 1200, "height": 100}, device_scale_factor=1.6)
        view.goto(file.as_uri())
        view.screenshot(path=FIGURE, full_page=True)


if __name__ == "__main__":
    main()
