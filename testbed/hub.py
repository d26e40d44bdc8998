"""A Hub of one repository over HTTP, for `huggingface_hub` itself: files of a folder, on a port of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "5" * 40


class Hub(ThreadingHTTPServer):
    """Serves a folder as the repository ``name``, at one commit.

    Attributes:
        asked: methods and paths of all requests so far.
    """

    daemon_threads = True

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name = name
        self.files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """What HF_ENDPOINT takes."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def downloaded(self) -> set[str]:
        """The files whose contents were asked for."""
        before = f"GET /{self.name}/resolve/{COMMIT}/"
        return {one.removeprefix(before) for one in self.asked if one.startswith(before)}


@contextlib.contextmanager
def serve(name: str, folder: Path) -> Iterator[Hub]:
    """A Hub that answers meanwhile."""
    with Hub(name, folder) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """What `snapshot_download` and `hf_hub_download` ask: a model, its tree, heads and contents of files."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers an API, or a file."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answers without the content."""
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def _answer(self, with_body: bool) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        api = f"/api/models/{hub.name}"
        revision, _, name = path.removeprefix(f"/{hub.name}/resolve/").partition("/")
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in hub.files]
            self._send(json.dumps({"id": hub.name, "sha": COMMIT, "siblings": siblings}).encode(), with_body)
        elif path.startswith(f"{api}/tree/"):
            self._send(json.dumps([_entry(*one) for one in hub.files.items()]).encode(), with_body)
        elif revision in ("main", COMMIT) and name in hub.files:
            self._send(hub.files[name].read_bytes(), with_body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if path.startswith(f"/{hub.name}/") else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, body: bytes, with_body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{_digest(body)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _entry(name: str, file: Path) -> dict[str, object]:
    content = file.read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
