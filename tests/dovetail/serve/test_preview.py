"""Previews: what of latents is what of a picture is found from pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from dovetail.jobs.job import Job
from dovetail.serve.work.preview import Preview
from dovetail.serve.work.ticket import Ticket


def painted(generator: np.random.Generator, mixing: np.ndarray, *, packed: bool) -> tuple[torch.Tensor, Image.Image]:
    """Latents of 12 rows and 8 columns, and the picture that a linear decoder makes of them."""
    colours = generator.random((12, 8, 3))
    latents = torch.tensor(colours @ mixing, dtype=torch.float32)
    pixels = (colours * 255).astype(np.uint8).repeat(4, 0).repeat(4, 1)
    return (latents.reshape(1, 96, 6) if packed else latents.permute(2, 0, 1)[None]), Image.fromarray(pixels)


@pytest.mark.parametrize("packed", [True, False])
def test_a_picture_is_told_from_its_latents_after_others_were_painted(packed: bool) -> None:
    generator = np.random.default_rng(0)
    mixing, preview = generator.normal(size=(3, 6)), Preview()
    job = Job("a", width=32, height=48)
    assert preview.picture(painted(generator, mixing, packed=packed)[0], job) is None
    for _ in range(3):
        ticket = Ticket(job)
        latents, picture = painted(generator, mixing, packed=packed)
        preview.note(ticket, latents)
        preview.end(ticket, picture)
    latents, picture = painted(generator, mixing, packed=packed)
    data = preview.picture(latents, job)
    assert data is not None
    shown = Image.open(io.BytesIO(data))
    assert shown.size == picture.size
    assert np.abs(np.asarray(shown, float) - np.asarray(picture, float)).mean() < 12


def test_latents_of_another_form_have_no_preview() -> None:
    preview, ticket = Preview(), Ticket(Job("a", width=32, height=48))
    for latents in (torch.zeros(1, 4, 3, 8, 8), torch.zeros(1, 7, 5), torch.full((1, 4, 8, 8), float("nan"))):
        preview.note(ticket, latents)
        preview.end(ticket, Image.new("RGB", (32, 48)))
        assert preview.picture(latents, ticket.job) is None


def test_tokens_have_no_preview_where_only_one_side_of_the_picture_is_known() -> None:
    generator = np.random.default_rng(0)
    preview, ticket = Preview(), Ticket(Job("a", width=32, height=48))
    latents, picture = painted(generator, generator.normal(size=(3, 6)), packed=True)
    preview.note(ticket, latents)
    preview.end(ticket, picture)
    assert preview.picture(latents, ticket.job) is not None
    assert preview.picture(latents, Job("a", height=48)) is None
