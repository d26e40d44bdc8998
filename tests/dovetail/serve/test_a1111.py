"""AUTOMATIC1111's routes, as its clients call them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from dovetail.jobs.job import Job
from dovetail.serve.app import application
from testbed.serving import Brush, served_by


@pytest.fixture(scope="module")
def brush() -> Brush:
    return Brush()


@pytest.fixture(scope="module")
def client(brush: Brush) -> TestClient:
    served = served_by([brush], model="demo", key="a long key")
    made = TestClient(application(served), base_url="http://127.0.0.1")
    made.auth = ("me", "a long key")
    return made


def picture(colour: str = "red") -> str:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


def opened(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def test_pictures_of_a_text_with_the_seeds_that_painted_them(client: TestClient, brush: Brush) -> None:
    asked = {
        "prompt": "a circle <lora:blue:0.5>", "negative_prompt": "blue", "width": 32, "height": 16, "steps": 3,
        "cfg_scale": 7, "seed": 11, "batch_size": 2, "sampler_name": "Euler a", "styles": [], "restore_faces": False,
    }  # fmt: skip
    answer = client.post("/sdapi/v1/txt2img", json=asked).json()
    assert [opened(one).getpixel((0, 0)) for one in answer["images"]] == [(11, 0, 0), (12, 0, 0)]
    info = json.loads(answer["info"])
    assert (info["seed"], info["all_seeds"], info["sampler_name"]) == (11, [11, 12], "TestScheduler")
    assert [f"Seed: {seed}," in told for seed, told in zip((11, 12), info["infotexts"], strict=True)] == [True, True]
    assert brush.painted[-1] == Job("a circle", "blue", 32, 16, 3, None, 7.0, 11, (("blue", 0.5),), count=2)


@pytest.mark.parametrize("head", ["", "data:image/png;base64,"])
def test_a_picture_of_a_picture(client: TestClient, brush: Brush, head: str) -> None:
    asked = {"init_images": [head + picture()], "mask": picture("white"), "denoising_strength": 0.75, "prompt": "a"}
    assert client.post("/sdapi/v1/img2img", json=asked).status_code == 200
    job = brush.painted[-1]
    assert job.image == base64.b64decode(picture())
    assert job.strength == 0.75


def test_the_lists_and_the_progress(client: TestClient) -> None:
    get = lambda name: client.get(f"/sdapi/v1/{name}").json()  # noqa: E731
    assert get("options")["sd_model_checkpoint"] == "demo"
    assert [one["name"] for one in get("samplers")] == ["TestScheduler"]
    assert [one["title"] for one in get("sd-models")] == ["demo"]
    assert [one["name"] for one in get("loras")] == ["blue"]
    assert get("progress")["state"]["job_count"] == 0
    assert client.post("/sdapi/v1/options", json={"sd_model_checkpoint": "demo", "CLIP_stop": 2}).status_code == 200


@pytest.mark.parametrize(
    ("route", "asked", "message"),
    [
        ("img2img", {"init_images": ["http://127.0.0.1/secret.png"]}, "taken inline only"),
        ("img2img", {"init_images": ["file:///etc/passwd"]}, "taken inline only"),
        ("img2img", {"init_images": ["/etc/passwd"]}, "no base64"),
        ("img2img", {"init_images": []}, "init_images is empty"),
        ("img2img", {"prompt": "a"}, "init_images is missing: give it"),
        ("img2img", {"init_images": ["aGFsbG8="], "mask": "http://x/y"}, "mask is an address"),
        ("txt2img", {"width": "512"}, "width has to be a whole number, and is a text: write it without quotes"),
        ("txt2img", {"batch_size": -1}, "batch_size and n_iter may be 1 to 4"),
        ("txt2img", {"prompt": "a <lora:../../blue>"}, "no LoRA is called '../../blue'"),
        ("txt2img", {"prompt": "a <lora:blue:much>"}, "the LoRA 'blue' with 'much', which is no scale"),
        ("txt2img", {"prompt": "a <lora:blue:1_0>"}, "'1_0', which is no scale"),
        ("txt2img", {"prompt": "a <lora:blue:\uff11>"}, "'\uff11', which is no scale"),
        ("txt2img", {"prompt": "a <lora:blue:nan>"}, "'nan', which is no scale"),
        ("txt2img", {"prompt": "a" * 20_000 + "<lora:blue:1>" + "b" * 50}, "prompt has 20063 characters"),
        ("txt2img", {"override_settings": {"sd_model_checkpoint": "/root/x"}}, "there is no checkpoint"),
        ("options", {"sd_model_checkpoint": "other"}, "there is no checkpoint 'other': this server has demo"),
    ],
)
def test_what_cannot_be_is_said(client: TestClient, route: str, asked: dict[str, Any], message: str) -> None:
    answer = client.post(f"/sdapi/v1/{route}", json=asked)
    assert answer.status_code == 400
    assert message in answer.json()["detail"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_no_answer_can_say_does_not_cost_the_picture(client: TestClient, number: str) -> None:
    body = f'{{"prompt": "a", "override_settings": {{"x": {number}}}}}'
    answer = client.post("/sdapi/v1/txt2img", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert len(answer.json()["images"]) == 1
