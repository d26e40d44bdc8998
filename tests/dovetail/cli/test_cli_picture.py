"""Pictures and videos as files."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from dovetail.cli.output.picture import check_suffix, other_size, save
from dovetail.compiler.errors import DovetailError, UsageError

FRAMES = np.stack([np.full((4, 6, 3), shade) for shade in (0.0, 0.5, 1.0)])


def test_a_picture_is_one_file(tmp_path: Path) -> None:
    picture = Image.new("RGB", (6, 4), "red")
    assert save(SimpleNamespace(images=[picture]), tmp_path / "a.png") == [tmp_path / "a.png"]
    assert Image.open(tmp_path / "a.png").getpixel((0, 0)) == (255, 0, 0)


def test_a_video_is_a_file_a_frame(tmp_path: Path) -> None:
    files = save(SimpleNamespace(frames=FRAMES[None]), tmp_path / "a.png")
    assert [file.name for file in files] == ["a-000.png", "a-001.png", "a-002.png"]
    assert [Image.open(file).getpixel((0, 0)) for file in files] == [(shade,) * 3 for shade in (0, 128, 255)]
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("name", ["a.gif", "a.webp"])
def test_a_video_that_moves_is_one_file(name: str, tmp_path: Path) -> None:
    frames = [[Image.fromarray((frame * 255).astype("uint8")) for frame in FRAMES]]
    assert save(SimpleNamespace(frames=frames), tmp_path / name) == [tmp_path / name]
    assert Image.open(tmp_path / name).n_frames == 3


def test_what_holds_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DovetailError, match="neither images nor frames"):
        save(SimpleNamespace(audios=[]), tmp_path / "a.png")


def test_a_picture_of_another_size_than_was_asked_for_is_told() -> None:
    found = (48, 32)
    assert other_size(found, 48, 32) == other_size(found, None, None) == other_size(found, 48, None) == ""
    assert other_size(found, 63, 32).startswith("63 x 32 was asked for and 48 x 32 is painted")


@pytest.mark.parametrize("name", ["a", "a.txt", "a.avi"])
def test_a_file_that_cannot_hold_a_picture_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"such as out\.png"):
        check_suffix(Path(name))


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    save(SimpleNamespace(images=[Image.new("RGB", (2, 2))]), path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="RGBA"):
        save(SimpleNamespace(images=[Image.new("RGBA", (2, 2))]), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_cannot_be_written_is_kept_elsewhere(tmp_path: Path) -> None:
    result = SimpleNamespace(images=[Image.new("RGB", (2, 2))])
    with pytest.raises(DovetailError, match=r"cannot write .*gone.*; what was painted is in (.*\.png)") as raised:
        save(result, tmp_path / "gone" / "out.png")
    kept = Path(str(raised.value).rpartition(" is in ")[2])
    assert Image.open(kept).size == (2, 2)
    shutil.rmtree(kept.parent)
