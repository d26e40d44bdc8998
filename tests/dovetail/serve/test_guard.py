"""What a request must be: its host, its page, its key, and its body."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dovetail.compiler.errors import UsageError
from dovetail.serve.app import application
from dovetail.serve.guard.access import is_known_host, key_in
from dovetail.serve.guard.bodies import is_deep
from dovetail.serve.guard.refusals import refusal
from dovetail.serve.work.settings import Settings
from testbed.serving import Brush, served_by

KEY = "a long key"
JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def client(**settings: object) -> TestClient:
    return TestClient(application(served_by([Brush()], **settings)), base_url="http://127.0.0.1:7860")


@pytest.fixture(scope="module")
def open_server() -> TestClient:
    return client(body=1000, origins=("https://friend.example",))


@pytest.fixture(scope="module")
def locked() -> TestClient:
    return client(key=KEY)


def depth(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth, inside), default=0)


@given(JSON, st.integers(0, 24))
def test_json_is_deep_where_it_is_nested_so_whatever_its_texts_say(value: object, more: int) -> None:
    for _ in range(more):
        value = [value]
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert is_deep(text.encode("utf-8", "surrogatepass")) == (depth(value) > 16)


@given(st.text(st.characters(codec="latin-1"), min_size=1).filter(lambda key: key == key.strip()))
def test_a_key_is_read_as_bearer_and_as_the_password_of_basic(key: str) -> None:
    data = key.encode("latin-1")
    assert key_in(f"Bearer {key}") == data
    assert key_in("Basic " + base64.b64encode(b"anybody:" + data).decode()) == data


@pytest.mark.parametrize("header", ["", "Bearer", "Basic", "Basic !!!", "Basic YQ==", "Digest x", "Basic \xff"])
def test_other_headers_give_no_key(header: str) -> None:
    assert key_in(header) == b""


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True), ("LOCALHOST:7860", True), ("127.0.0.1:1", True), ("[::1]:80", True), ("10.1.2.3", True),
        ("evil.example", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example:7860", False),
        ("", False), ("localhost:80:80", False), ("[::1]x", False), ("localhost@evil", False), ("a b", False),
        ("[::1]", True), ("[::1", False), ("[localhost]", False), ("[localhost]:80", False), ("[10.1.2.3]", False),
        ("[fe80::1%evil.example]:80", False), ("[::1]:", False), ("[::1]:\u00b2", False), ("::1", False),
    ],
)  # fmt: skip
def test_a_host_is_known_by_its_name_or_as_an_address(host: str, expected: bool) -> None:
    assert is_known_host(host, {"localhost"}) is expected


def test_a_name_that_leads_here_by_chance_is_refused(open_server: TestClient) -> None:
    assert open_server.get("/health", headers={"Host": "evil.example"}).status_code == 400
    assert open_server.get("/health").status_code == 200


def test_pages_of_others_may_not_ask_unless_they_are_named(open_server: TestClient) -> None:
    body = {"prompt": "a"}
    foreign = open_server.post("/v1/images/generations", json=body, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert "access-control-allow-origin" not in foreign.headers
    crossed = open_server.post("/v1/images/generations", json=body, headers={"Sec-Fetch-Site": "cross-site"})
    assert crossed.status_code == 403
    own = open_server.post("/v1/images/generations", json=body, headers={"Origin": "http://127.0.0.1:7860"})
    assert own.status_code == 200
    friend = open_server.post("/v1/images/generations", json=body, headers={"Origin": "https://friend.example"})
    assert friend.status_code == 200
    assert friend.headers["access-control-allow-origin"] == "https://friend.example"


@pytest.mark.parametrize("path", ["/v1/models", "/sdapi/v1/options", "/api/state", "/metrics", "/nowhere"])
def test_without_the_key_nothing_is_told(locked: TestClient, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {KEY}x"}):
        answer = locked.get(path, headers=headers)
        assert answer.status_code == 401
        assert "www-authenticate" in answer.headers
    assert locked.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code in (200, 404)
    assert locked.get(path, auth=("anybody", KEY)).status_code in (200, 404)


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/assets/studio.js"])
def test_the_page_itself_and_whether_the_server_is_well_need_no_key(locked: TestClient, path: str) -> None:
    assert locked.get(path).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b'{"prompt": "a"}', 200),
        ("application/json; charset=utf-8", b'{"prompt": "a"}', 200),
        ("text/plain", b'{"prompt": "a"}', 415),
        ("application/x-www-form-urlencoded", b"prompt=a", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("", b'{"prompt": "a"}', 415),
        ("application/json", b'{"prompt": "' + b"a" * 1000 + b'"}', 413),
        ("application/json", b"[" * 100, 400),
        ("application/json", b"", 400),
    ],
)
def test_bodies_are_taken_with_their_type_and_up_to_a_size(
    open_server: TestClient, kind: str, body: bytes, status: int
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    assert open_server.post("/v1/images/generations", content=body, headers=headers).status_code == status


def test_a_body_without_a_length_is_measured_as_it_comes(open_server: TestClient) -> None:
    parts = (b"x" * 100 for _ in range(20))
    answer = open_server.post("/v1/images/generations", content=parts, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_every_answer_has_the_headers_that_keep_a_browser_safe(open_server: TestClient) -> None:
    for path in ("/", "/health", "/nowhere"):
        headers = open_server.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in open_server.get("/").headers["content-security-policy"]


def test_an_address_that_others_reach_needs_a_key() -> None:
    Settings(host="0.0.0.0", key="long enough").check()
    Settings(host="127.0.0.1").check()
    for settings in (Settings(host="0.0.0.0"), Settings(host="192.168.0.7"), Settings(key="short")):
        with pytest.raises(UsageError, match="key"):
            settings.check()


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "utf-16", "latin-1", "x" * 100])
def test_a_form_in_another_charset_is_not_decoded(open_server: TestClient, charset: str) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="\\ud800"\r\n\r\na\r\n' * 2 + b"--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    answer = open_server.post("/v1/images/edits", content=form, headers=headers)
    assert answer.status_code == 400
    assert "forms are taken in UTF-8" in answer.json()["error"]["message"]


@pytest.mark.parametrize("charset", ["", "; charset=UTF-8", '; charset="utf8"'])
def test_a_form_in_utf_8_is_read(open_server: TestClient, charset: str) -> None:
    form = '--x\r\nContent-Disposition: form-data; name="é"\r\n\r\na\r\n'.encode() * 2 + b"--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary=x{charset}"}
    answer = open_server.post("/v1/images/edits", content=form, headers=headers)
    assert "the form has é twice" in answer.json()["error"]["message"]


def test_a_refusal_can_say_the_name_of_any_file() -> None:
    answer = refusal("/v1/models", 400, "there is no caf\udce9", field="\ud800")
    assert json.loads(answer.body)["error"]["message"] == "there is no caf?"


def test_json_of_very_many_parts_is_refused_and_a_long_text_is_not() -> None:
    assert is_deep(b'{"x":[' + b"1," * 50_000 + b"1]}")
    assert not is_deep(b'{"prompt":"' + b"a, " * 20_000 + b'"}')
    assert not is_deep(b'{"x":[' + b"1," * 20_000 + b"1]}")
