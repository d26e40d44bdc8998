"""Requests that no client of good will sends, drawn by a seed: paths, addresses, huge numbers, deep and wrong JSON."""

from __future__ import annotations

import base64
import io
import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

ROUTES = (
    "/v1/images/generations", "/v1/images/edits", "/v1/models/x", "/sdapi/v1/txt2img", "/sdapi/v1/img2img",
    "/sdapi/v1/options", "/api/generate", "/pictures/../../etc/passwd", "/pictures/%2e%2e%2fetc%2fpasswd",
    "/assets/../page.py", "/assets/%2e%2e/server.py", "//etc/passwd", "/nowhere", "/api/state?x=" + "y" * 3000,
    "/sdapi/v1/progress?skip_current_image=perhaps", "/v1/models/..%2f..%2fetc%2fpasswd", "/%00", "/\xff",
)  # fmt: skip
TEXTS = ("prompt", "negative_prompt", "model", "size", "response_format", "output_format")
NUMBERS = (
    "n", "seed", "steps", "guidance", "cfg_scale", "width", "height", "strength", "count", "batch_size", "n_iter",
    "denoising_strength", "output_compression", "partial_images",
)  # fmt: skip
_PAINT = ("/v1/images/generations", "/sdapi/v1/txt2img", "/sdapi/v1/img2img", "/api/generate")
_KINDS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "a" * 999)
_METHODS = ("PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "A" * 100)
PICTURES = ("image", "mask", "init_images")
_HUGE = (10**5000, -(10**400), 2**63, 2**64, -1, 0, 1e308, -1e308, 10**9, 0.5, "1e999", "NaN", "Infinity", True, None)


@dataclass(frozen=True)
class Hostile:
    """A request as bytes, and what is hostile about it; ``pause`` are the seconds in the middle of its body."""

    what: str
    head: bytes
    body: bytes = b""
    pause: float = 0.0


@dataclass
class Drawn:
    """Draws requests; ``secrets`` are paths and addresses that they name."""

    host: str
    seed: int
    secrets: Sequence[str] = ("/etc/passwd", "../../../etc/shadow", "file:///etc/passwd", "http://127.0.0.1:9/x.png")
    has_slow: bool = True
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def one(self) -> Hostile:
        """One request."""
        ways: list[Callable[[], Hostile]] = [
            self._fields, self._fields, self._fields, self._deep, self._bytes, self._kind, self._host, self._length,
            self._form, self._form, self._picture, self._picture, self._method, self._chunks, self._key, self._slow,
        ]  # fmt: skip
        return self.random.choice(ways)()

    def _post(self, what: str, body: bytes, route: str = "", kind: str = "application/json", **more: str) -> Hostile:
        route = route or self.random.choice(ROUTES)
        headers = {"Host": self.host, "Content-Type": kind, "Content-Length": str(len(body)), **more}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST {route} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
        return Hostile(f"{what} {route[:40]!r}", head.encode("latin-1", "replace"), body)

    def _value(self) -> Any:
        drawn = self.random
        return drawn.choice(
            [*_HUGE, *self.secrets, "", "x" * drawn.randrange(30_000), [], {}, [[1]], {"a": {"b": 1}}, "\ud800", "\x00",
             "<lora:../../x:1>", "<lora:blue:nan>", "<lora:/etc/passwd>", "999999x999999", "0x0", "-1x-1", "4097x4097"]
        )  # fmt: skip

    def _fields(self) -> Hostile:
        names = self.random.sample((*TEXTS, *NUMBERS, *PICTURES, "loras", "override_settings", "stream"), 4)
        body: dict[str, Any] = {"prompt": "a", **{name: self._value() for name in names}}
        if self.random.random() < 0.3:
            body["loras"] = {self.random.choice(self.secrets): 1}
        route = self.random.choice(
            ("/v1/images/generations", "/sdapi/v1/txt2img", "/sdapi/v1/img2img", "/api/generate")
        )
        text = json.dumps(body, default=str) if self._can(body) else '{"prompt": 1' + "0" * 6000 + "}"
        return self._post(f"fields {sorted(names)} of", text.encode(), route)

    @staticmethod
    def _can(body: dict[str, Any]) -> bool:
        try:
            json.dumps(body)
        except ValueError:
            return False
        return True

    def _deep(self) -> Hostile:
        depth = self.random.choice((17, 199, 1000, 100_000))
        way = self.random.choice((b"[", b'{"a":', b'{"prompt":[', b'["\\"', b'"\\"'))
        return self._post(f"nested {depth} deep at", way * depth)

    def _bytes(self) -> Hostile:
        return self._post("bytes at", self.random.randbytes(self.random.randrange(5000)))

    def _kind(self) -> Hostile:
        kind = self.random.choice(
            ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "a" * 999)
        )
        return self._post(f"the type {kind[:20]!r} at", b'{"prompt": "a"}', kind=kind)

    def _host(self) -> Hostile:
        host = self.random.choice(("evil.example", "127.0.0.1.evil.example", "", "a\tb", "[::1", "x" * 5000))
        return self._post(f"the host {host[:20]!r} at", b'{"prompt": "a"}', Host=host)

    def _length(self) -> Hostile:
        length = self.random.choice(("-1", "1e9", "9" * 30, "99999999999", "0x10", "5, 5"))
        return self._post(f"the length {length[:12]} at", b'{"prompt": "a"}', Content_Length=length)

    def _method(self) -> Hostile:
        method, route = (
            self.random.choice(("PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "A" * 100)),
            self.random.choice(ROUTES),
        )
        head = f"{method} {route} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n"
        return Hostile(f"{method[:10]} {route[:40]!r}", head.encode("latin-1"))

    def _chunks(self) -> Hostile:
        body = self.random.choice((b"zz\r\n", b"5\r\nab", b"ffffffffffffffffff\r\nx", b"0\r\n\r\n"))
        head = f"POST /v1/images/generations HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        return Hostile("bad chunks", f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode(), body)

    def _key(self) -> Hostile:
        given = self.random.choice(("Bearer x", "Basic ====", "Basic eDp5", "Bearer " + "x" * 9000, "Bearer \xff"))
        return self._post(f"the key {given[:12]!r} at", b'{"prompt": 1}', Authorization=given)

    def _slow(self) -> Hostile:
        made = self._post("slowly", b'{"prompt": 1, "seed": "x"}', "/v1/images/generations")
        return Hostile(made.what, made.head, made.body, 0.4 if self.has_slow else 0.0)

    def _form(self) -> Hostile:
        edge = self.random.choice(("x", "x" * 300, "é", ""))
        name = self.random.choice(("image", "mask", "image[]", "prompt", "../x", "n", "x" * 500, ""))
        file = self.random.choice(("", '; filename="../../etc/passwd"', '; filename="a.png"', "; filename*=utf-8''%ff"))
        part = f'--{edge}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode("latin-1")
        body = part + self.random.choice((b"x", b"\xff" * 300, self._bomb(), b"http://127.0.0.1/x")) + b"\r\n"
        times = self.random.choice((1, 2, 50))
        end = self.random.choice((f"--{edge}--\r\n", "")).encode("latin-1")
        kind = f"multipart/form-data; boundary={edge}"
        return self._post(f"a form of {times} {name[:10]!r} at", body * times + end, "/v1/images/edits", kind)

    def _picture(self) -> Hostile:
        drawn = self.random
        data = drawn.choice((self._bomb(), drawn.randbytes(400), self._cut(), b"<svg/>", b"%PDF-1.4", b"GIF89a" * 9))
        text = drawn.choice((base64.b64encode(data).decode(), *self.secrets, "data:text/html;base64,eA==", "%%%"))
        body = json.dumps({"prompt": "a", "init_images": [text], "steps": 1}).encode()
        return self._post("a picture at", body, "/sdapi/v1/img2img")

    def _bomb(self) -> bytes:
        """A PNG of some hundred bytes that says it has very many pixels."""
        side = self.random.choice((5000, 60_000, 2**31 - 1))
        head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        chunks = (b"IHDR", head), (b"IDAT", zlib.compress(bytes(99_999))), (b"IEND", b"")
        packed = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
        return b"\x89PNG\r\n\x1a\n" + b"".join(packed)

    def _cut(self) -> bytes:
        """A real picture, of which a part is missing or another."""
        file = io.BytesIO()
        Image.new("RGB", (16, 16), "red").save(file, format=self.random.choice(("png", "jpeg", "webp")))
        data = bytearray(file.getvalue())
        for _ in range(3):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data[: self.random.randrange(1, len(data))])


def asked(address: str, one: Hostile, seconds: float = 30.0) -> tuple[int, bytes]:
    """The status of the answer to a request, 0 where there is none within some seconds, and the answer."""
    place = urlsplit(address)
    answer = b""
    with socket.create_connection((place.hostname, place.port), timeout=seconds) as connection:
        try:
            connection.sendall(one.head + one.body[: len(one.body) // 2])
            time.sleep(one.pause)
            connection.sendall(one.body[len(one.body) // 2 :])
            while part := connection.recv(65536):
                answer += part
        except OSError:  # it has hung up, or waits for more
            pass
    words = answer.split(b" ", 2)
    return (int(words[1]) if len(words) > 1 and words[1].isdigit() else 0), answer
