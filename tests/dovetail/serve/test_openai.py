"""The openai package as it is, with another base URL."""

from __future__ import annotations

import base64
import io
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from dovetail.compiler.errors import DoesNotFitError
from dovetail.jobs.job import Job
from testbed.serving import Brush, running, served_by


def refuse(job: Job) -> None:
    if job.width == 256:
        raise DoesNotFitError("256 x 256 needs 9 GiB on sim0", ways="--max-vram 10")


@pytest.fixture(scope="module")
def brush() -> Brush:
    return Brush(refuse=refuse)


@pytest.fixture(scope="module")
def client(brush: Brush) -> Iterator[openai.OpenAI]:
    served = served_by([brush], model="demo", key="a long key")
    with running(served) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="a long key") as made:
        yield made.with_options(max_retries=0)


def opened(image: Any) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image.b64_json)))


def test_pictures_are_inline_and_each_has_the_next_seed(client: openai.OpenAI) -> None:
    made = client.images.generate(prompt="a circle", n=2, size="32x16", extra_body={"seed": 5, "steps": 3})
    assert made.data is not None
    assert [opened(one).getpixel((0, 0)) for one in made.data] == [(5, 0, 0), (6, 0, 0)]
    assert opened(made.data[0]).size == (32, 16)
    assert made.size == "32x16"


def test_pictures_by_address_are_kept_under_names_that_say_nothing(client: openai.OpenAI) -> None:
    made = client.images.generate(model="dall-e-3", prompt="a", response_format="url", extra_body={"seed": 9})
    assert made.data is not None
    url = made.data[0].url
    assert url is not None
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["Content-Type"] == "image/png"
        assert Image.open(answer).getpixel((0, 0)) == (9, 0, 0)


def test_all_that_is_asked_for_reaches_the_painter(client: openai.OpenAI, brush: Brush) -> None:
    more = {"seed": 3, "steps": 7, "guidance": 2, "cfg_scale": 4.5, "negative_prompt": "blue", "loras": {"blue": 0.5}}
    client.images.generate(prompt="a <lora:blue:0.25> circle", size="64x48", extra_body=more)
    loras = (("blue", 0.5), ("blue", 0.25))
    assert brush.painted[-1] == Job("a circle", "blue", 64, 48, 7, 2.0, 4.5, 3, loras)


def test_an_edit_sends_its_picture_and_what_is_transparent_is_painted(client: openai.OpenAI, brush: Brush) -> None:
    picture, mask = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(picture, format="png")
    hole = Image.new("RGBA", (16, 16), (0, 0, 0, 255))
    hole.putpixel((3, 4), (0, 0, 0, 0))
    hole.save(mask, format="png")
    files = {"image": ("a.png", picture.getvalue()), "mask": ("m.png", mask.getvalue())}
    client.images.edit(prompt="2 circles", n=1, extra_body={"strength": 0.5, "seed": 2}, **files)
    job = brush.painted[-1]
    assert (job.prompt, job.image, job.strength, job.seed) == ("2 circles", picture.getvalue(), 0.5, 2)
    assert job.mask is not None
    white = Image.open(io.BytesIO(job.mask))
    assert [white.getpixel((3, 4)), white.getpixel((4, 3))] == [255, 0]


def test_a_stream_ends_with_the_picture(client: openai.OpenAI) -> None:
    events = list(client.images.generate(prompt="a", stream=True, partial_images=1, extra_body={"seed": 4}))
    assert events[-1].type == "image_generation.completed"
    assert opened(events[-1]).getpixel((0, 0)) == (4, 0, 0)


def test_the_models_are_this_one(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("asked", "kind", "message", "param"),
    [
        ({"size": "256x256"}, openai.UnprocessableEntityError, "needs 9 GiB on sim0: --max-vram 10", None),
        ({"size": "999x16"}, openai.BadRequestError, "width is 999, and may be 1 to 256", "size"),
        ({"size": "big"}, openai.BadRequestError, "size is 'big': write width and height", "size"),
        ({"size": "64x100000"}, openai.BadRequestError, "height is 100000, and may be 1 to 256", "size"),
        ({"n": 5}, openai.BadRequestError, "n is 5, and may be 1 to 4", "n"),
        ({"n": 0}, openai.BadRequestError, "n is 0", "n"),
        ({"model": "sdxl"}, openai.NotFoundError, "there is no model 'sdxl': this server has demo", "model"),
        (
            {"extra_body": {"loras": {"red": 1}}},
            openai.BadRequestError,
            "no LoRA is called 'red': there are blue",
            "loras",
        ),
        ({"extra_body": {"seed": "x"}}, openai.BadRequestError, "seed has to be a whole number, and is a text", "seed"),
        ({"background": "transparent"}, openai.BadRequestError, "background is transparent", "background"),
        ({"extra_body": {"loras": {"blue": 1e6}}}, openai.BadRequestError, "and may have -100 to 100", "loras"),
    ],
)
def test_what_cannot_be_is_an_error_of_the_client_with_our_words(
    client: openai.OpenAI, asked: dict[str, Any], kind: type[openai.APIStatusError], message: str, param: str | None
) -> None:
    for _ in range(2):
        with pytest.raises(kind) as told:
            client.images.generate(prompt="a", **asked)
        assert message in told.value.message
        assert told.value.param == param


def test_an_edit_whose_picture_is_none_names_the_file(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the image that was sent is damaged") as told:
        client.images.edit(prompt="a", image=b"no picture")
    assert told.value.param == "image"


def test_another_key_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another key").models.list()


@pytest.mark.parametrize("path", ["/images/generations", "/images/edits"])
def test_a_method_that_a_route_does_not_take_is_the_clients_error(client: openai.OpenAI, path: str) -> None:
    with pytest.raises(openai.APIStatusError) as told:
        client.get(path, cast_to=object)
    assert (told.value.status_code, told.value.type) == (405, "invalid_request_error")
