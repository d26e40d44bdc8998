"""Hostile requests: each is answered with a sentence or not at all, and the server goes on as before."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import httpx2
import pytest
from PIL import Image

from dovetail.compiler.errors import UsageError
from dovetail.jobs.bounds import Bounds
from dovetail.jobs.job import Job
from dovetail.jobs.pictures import opened_pictures
from dovetail.serve.api.pictures import transparent_part
from testbed.hostile import Drawn, asked
from testbed.serving import Brush, running, served_by

BOUNDS = Bounds(side=256, pixels=256 * 256, steps=20, count=4, bytes=200_000)


def read_pictures(job: Job) -> None:
    opened_pictures(job, BOUNDS)


@pytest.mark.parametrize("key", ["", "a long key"])
def test_no_request_breaks_the_server_or_touches_a_file(key: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"x")
    os.utime(secret, (1, 1))
    served = served_by([Brush(refuse=read_pictures)], key=key, bounds=BOUNDS, body=500_000, seconds=0.1)
    before = set(tmp_path.parent.rglob("*"))
    with running(served) as address:
        secrets = (str(secret), secret.as_uri(), f"{address}/pictures/x", "../secret.png")
        drawn = Drawn(address.removeprefix("http://"), int(os.environ["DOVETAIL_TEST_SEED"]), secrets, has_slow=False)
        statuses = set()
        for _ in range(80):
            one = drawn.one()
            status, answer = asked(address, one, 10)
            statuses.add(status)
            assert status < 500, (one.what, answer)
            assert b"Traceback" not in answer, one.what
            assert b"site-packages" not in answer, one.what
        assert statuses > ({401} if key else {400, 415}), "each was answered, and not all of them alike"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        assert httpx2.post(f"{address}/api/generate", json={"prompt": "a"}, headers=headers).status_code == 200
    assert secret.stat().st_atime == 1
    assert set(tmp_path.parent.rglob("*")) == before


def test_a_picture_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    drawn = Drawn("localhost", 0)
    for _ in range(200):
        for data in (drawn._cut(), drawn._bomb()):
            try:
                opened_pictures(Job("a", image=data), BOUNDS)
            except UsageError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("side", [300, 10_000, 30_000])
def test_a_picture_of_too_many_pixels_is_told_so_by_its_head(side: int) -> None:
    head = struct.pack(">4sIIBBBBB", b"IHDR", side, side, 8, 6, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    data += struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT"))
    for opens in (
        lambda: opened_pictures(Job("a", image=data), BOUNDS),
        lambda: transparent_part(data, "image", BOUNDS),
    ):
        with pytest.raises(UsageError, match="pixels"):
            opens()


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_what_is_transparent_is_turned_as_its_picture_is(orientation: int) -> None:
    picture, exif = Image.new("RGBA", (64, 32), (255, 255, 255, 255)), Image.Exif()
    picture.paste((0, 0, 0, 0), (0, 0, 32, 32))
    exif[0x0112] = orientation
    file = io.BytesIO()
    picture.save(file, format="png", exif=exif)
    mask = transparent_part(file.getvalue(), "image", BOUNDS)
    assert mask is not None
    opened = opened_pictures(Job("a", image=file.getvalue(), mask=mask), BOUNDS)
    black = opened["image"].convert("L").point(lambda level: 255 - level)
    assert black.size == opened["mask_image"].size
    assert black.tobytes() == opened["mask_image"].tobytes(), "white where the picture is replaced"
