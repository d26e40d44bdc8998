"""Downloads by huggingface_hub itself, over HTTP from a port of these tests: what is said, fetched and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.hub import Hub, serve
from testbed.pipelines import tiny_pipelines

GENERATE = ["generate", "a dog", "--model", "owner/sd", "--size", "64", "--steps", "1"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    tiny_pipelines.sd()[0].save_pretrained(folder)
    (folder / "unet" / "diffusion_pytorch_model.bin").write_bytes(bytes(2**20))  # of an older format: of no use here
    with serve("owner/sd", folder) as hub:
        yield hub


def told(hub: Hub, home: Path, words: list[str], before: str = "pass") -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, whose Hub and its cache are these."""
    code = f"import sys; {before}; sys.argv = ['dovetail', *{words}]; from dovetail.cli import run; run()"
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_size_is_said_before_a_download_and_nothing_when_all_is_there(hub: Hub, tmp_path: Path) -> None:
    hub.asked.clear()
    first = told(hub, tmp_path, [*GENERATE, "-o", str(tmp_path / "first.png")])
    assert first.returncode == 0, first.stderr
    fetched = hub.downloaded()
    assert any(name.startswith("unet/") for name in fetched)
    assert not any(name.endswith(".bin") for name in fetched)
    size = sum(hub.files[name].stat().st_size for name in fetched - {"model_index.json"})
    assert (
        f"downloading owner/sd: {size / 2**10:.1f} KiB in {len(fetched - {'model_index.json'})} files" in first.stderr
    )
    assert "Fetching" not in first.stderr  # a bar where nobody looks at a terminal

    hub.asked.clear()
    again = told(hub, tmp_path, [*GENERATE, "-o", str(tmp_path / "again.png")])
    assert again.returncode == 0, again.stderr
    assert hub.downloaded() <= {"model_index.json"}
    assert "downloading" not in again.stderr
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "first.png").read_bytes()


@pytest.mark.slow
def test_a_download_that_the_disk_has_no_room_for_is_refused_before_it_begins(hub: Hub, tmp_path: Path) -> None:
    hub.asked.clear()
    small = "import shutil, types; shutil.disk_usage = lambda path: types.SimpleNamespace(free=2**10, total=2**40)"
    done = told(hub, tmp_path, [*GENERATE, "-o", str(tmp_path / "out.png")], small)
    assert done.returncode == 3
    assert "error: owner/sd takes" in done.stderr
    assert "has 1.0 KiB free: free some, or name a folder on another disk in HF_HOME" in done.stderr
    assert hub.downloaded() <= {"model_index.json"}
    assert not (tmp_path / "out.png").exists()


@pytest.mark.slow
def test_what_is_here_of_a_download_is_known_meanwhile(hub: Hub, tmp_path: Path) -> None:
    noted = (
        "from dovetail.progress import downloads; from dovetail.cli.options.subject import located, find_pipeline; "
        "before = downloads.Download.__setattr__; seen = []; "
        "note = lambda self, name, value: (before(self, name, value), seen.append(downloads.describe())); "
        "downloads.Download.__setattr__ = note; located(find_pipeline('owner/sd')); "
        "print(*filter(None, seen), sep='\\n'); print(repr(downloads.describe()))"
    )
    done = told(hub, tmp_path, ["--version"], noted)
    *seen, after = [line for line in done.stdout.splitlines() if not line.startswith("dovetail ")]
    assert after == "''"
    assert all(one.startswith("downloading owner/sd: ") for one in seen)
    here, of = seen[-1].split(": ")[1].split(" (")[0].split(" of ")
    assert here == of


@pytest.mark.slow
def test_several_threads_download_at_once(hub: Hub, tmp_path: Path) -> None:
    several = (
        "import threading, diffusers; from dovetail.conventions.hub import download; "
        f"load = lambda number: done.append(download(diffusers.DiffusionPipeline, 'owner/sd', None, "
        f"{{'cache_dir': '{tmp_path}/' + str(number)}})); done = []; "
        "threads = [threading.Thread(target=load, args=(number,)) for number in range(3)]; "
        "[one.start() for one in threads]; [one.join() for one in threads]; print(len(done), 'done')"
    )
    done = told(hub, tmp_path, ["--version"], several)
    assert "3 done" in done.stdout, done.stderr
    assert done.stderr.count("downloading owner/sd: ") == 3


@pytest.mark.slow
def test_a_disk_that_says_nothing_of_its_room_is_taken_to_have_it(hub: Hub, tmp_path: Path) -> None:
    silent = "import shutil, types; shutil.disk_usage = lambda path: types.SimpleNamespace(free=0, total=0)"
    done = told(hub, tmp_path, [*GENERATE, "-o", str(tmp_path / "out.png")], silent)
    assert done.returncode == 0, done.stderr


def test_a_repository_that_is_not_there_is_said_in_one_line(hub: Hub, tmp_path: Path) -> None:
    done = told(hub, tmp_path, ["generate", "a dog", "--model", "owner/none", "-o", str(tmp_path / "out.png")])
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: cannot download model_index.json of owner/none: ")
