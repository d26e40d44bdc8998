"""A server that runs: clients that hang up, events, its end, and what it says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2
import pytest
from PIL import Image

from dovetail.jobs.bounds import Bounds
from dovetail.jobs.job import Job
from dovetail.jobs.runner import OnStep
from dovetail.serve.api.served import Served
from dovetail.serve.app import application
from dovetail.serve.guard.connections import Connection
from dovetail.serve.server import Server, address_of, bound, last_words
from dovetail.serve.work.ticket import RUNNING, WAITING, Ticket
from testbed.serving import Brush, running, served_by, wait


def sent(address: str, body: bytes, path: str = "/v1/images/generations") -> socket.socket:
    """A connection on which a request was sent, whose answer nobody has read."""
    place = urlsplit(address)
    made = socket.create_connection((place.hostname, place.port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


@pytest.mark.parametrize("path", ["/v1/images/generations", "/sdapi/v1/txt2img", "/api/generate"])
def test_a_client_that_hangs_up_ends_its_job_within_a_step(path: str) -> None:
    brush = Brush(gate=threading.Semaphore(1))
    served = served_by([brush])
    with running(served) as address:
        with sent(address, b'{"prompt": "a"}', path):
            wait(lambda: any(one.state == "running" for one in served.queue.tickets()))
            (ticket,) = served.queue.tickets()
        wait(lambda: ticket._is_left)
        assert brush.gate is not None
        brush.gate.release()
        wait(lambda: ticket.is_over)
        assert (ticket.state, brush.painted) == ("gone", [])
        brush.gate = None
        assert httpx2.post(f"{address}{path}", json={"prompt": "a"}, timeout=10).status_code == 200


def test_an_interrupt_ends_the_job_of_its_routes_alone_which_is_answered_without_pictures() -> None:
    brush = Brush(gate=threading.Semaphore(0))
    served = served_by([brush])
    assert brush.gate is not None
    with running(served) as address, ThreadPoolExecutor(2) as pool:

        def begun(path: str, **asked: object) -> Future[httpx2.Response]:
            answer = pool.submit(httpx2.post, f"{address}{path}", json=asked, timeout=10)
            wait(lambda: any(one.state == "running" for one in served.queue.tickets()))
            assert httpx2.post(f"{address}/sdapi/v1/interrupt").json() == {}
            brush.gate.release(brush.steps + 1)
            return answer

        assert len(begun("/v1/images/generations", prompt="a").result().json()["data"]) == 1
        wait(lambda: not served.queue.tickets())
        answer = begun("/sdapi/v1/txt2img", prompt="b", seed=3).result().json()
    assert (answer["images"], json.loads(answer["info"])["all_seeds"]) == ([], [3])
    assert [one.prompt for one in brush.painted] == ["a"]


def test_a_full_queue_says_when_to_come_again() -> None:
    brush = Brush(gate=threading.Semaphore(0))
    served = served_by([brush], waiting=1)
    with running(served) as address:
        first = sent(address, b'{"prompt": "a"}')
        wait(lambda: any(one.state == "running" for one in served.queue.tickets()))
        second = sent(address, b'{"prompt": "a"}')
        wait(lambda: len(served.queue.tickets()) == 2)
        full = httpx2.post(f"{address}/v1/images/generations", json={"prompt": "a"})
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        assert brush.gate is not None
        brush.gate.release(50)
        for one in (first, second):
            assert one.recv(100).startswith(b"HTTP/1.1 200")
            one.close()


def test_events_tell_of_the_steps_and_end_with_the_picture() -> None:
    with running(served_by([Brush()])) as address:
        with httpx2.stream("POST", f"{address}/api/generate", json={"prompt": "a", "seed": 3, "count": 2}) as answer:
            parts = "".join(answer.iter_text()).split("\n\n")[:-1]
        events = [(one.splitlines()[0][7:], json.loads(one.splitlines()[1][6:])) for one in parts]
        assert events[-1][0] == "done"
        assert [one["seed"] for one in events[-1][1]["pictures"]] == [3, 4]
        url = events[-1][1]["pictures"][0]["url"]
        assert httpx2.get(address + url).headers["content-type"] == "image/png"
        assert httpx2.get(f"{address}/pictures/guessed").status_code == 404


def test_what_it_is_asked_to_end_by_finishes_what_is_painted_and_tells_who_waits() -> None:
    brush = Brush(gate=threading.Semaphore(0))
    served = served_by([brush])
    with bound(served.settings) as listening:
        server, address = Server(application(served), served.queue.close), address_of(listening)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        first = sent(address, b'{"prompt": "a"}')
        wait(lambda: any(one.state == "running" for one in served.queue.tickets()))
        second = sent(address, b'{"prompt": "a"}')
        wait(lambda: len(served.queue.tickets()) == 2)
        server.end()
        assert second.recv(100).startswith(b"HTTP/1.1 503")
        second.close()
        assert thread.is_alive()
        assert brush.gate is not None
        brush.gate.release(50)
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        first.close()
        thread.join(10)
        assert not thread.is_alive()
    assert len(brush.painted) == 1


def test_a_body_that_comes_too_slowly_is_not_waited_for() -> None:
    with running(served_by([Brush()], seconds=0.2)) as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=10) as slow:
            head = f"POST /v1/images/generations HTTP/1.1\r\nHost: {place.netloc}\r\n"
            slow.sendall(f'{head}Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"pro'.encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("seconds", [0.3, 60])
def test_bodies_that_do_not_end_have_a_bound_in_all_and_make_room_however_they_end(seconds: float) -> None:
    with running(served_by([Brush()], bodies=1000, seconds=seconds)) as address:
        place, body = urlsplit(address), json.dumps({"prompt": "a" * 400}).encode()
        ask = lambda: httpx2.post(f"{address}/api/generate", content=body, headers={"Content-Type": "application/json"})  # noqa: E731
        head = f"POST /api/generate HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((place.hostname, place.port), timeout=10) as slow:
            slow.sendall(f"{head}Content-Length: 900\r\n\r\n".encode() + b" " * 800)
            time.sleep(0.1)
            full = ask()
            assert (full.status_code, full.headers["retry-after"]) == (503, "10")
            if seconds < 1:
                assert slow.recv(100).startswith(b"HTTP/1.1 408")
        wait(lambda: ask().status_code == 200)
        assert [ask().status_code for _ in range(3)] == [200] * 3


def test_what_nobody_foresaw_is_told_without_its_words() -> None:
    def fail(job: Job) -> None:
        raise RuntimeError("secret /root/path")

    with running(served_by([Brush(fail=fail)])) as address:
        answer = httpx2.post(f"{address}/v1/images/generations", json={"prompt": "a"})
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert httpx2.get(f"{address}/health").json() == {"status": "ok"}


def test_what_it_says_of_itself() -> None:
    with running(served_by([Brush()])) as address:
        httpx2.post(f"{address}/v1/images/generations", json={"prompt": "a"})
        state = httpx2.get(f"{address}/api/state").json()
        assert state["devices"] == [
            {"name": "sim0", "painter": 0, "used": 512, "peak": 768, "planned": 800, "free": 1024}
        ]
        told = httpx2.get(f"{address}/metrics").text
        for line in (
            'dovetail_jobs_total{outcome="done"} 1.0',
            'dovetail_phase_seconds_total{phase="sampling"} 0.5',
            'dovetail_device_peak_bytes{device="sim0"} 768.0',
            'dovetail_cache_lookups_total{result="read"} 1.0',
            'dovetail_queue_jobs{state="waiting"} 0.0',
            'dovetail_requests_total{route="/v1/images/generations",status="200"} 1.0',
        ):
            assert line in told
        assert httpx2.get(f"{address}/ready").json() == {"ready": True}


def test_a_connection_that_sends_no_whole_head_is_closed_also_after_an_answer() -> None:
    with running(served_by([Brush()], head=0.2)) as address:
        place = urlsplit(address)
        asks = f"GET /health HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
        for begun in (b"", b"GET /health HT", asks + b"GET /hea"):
            with socket.create_connection((place.hostname, place.port), timeout=5) as slow:
                slow.sendall(begun)
                answers = b"".join(iter(lambda: slow.recv(1000), b""))
                assert answers.count(b"200 OK") == begun.count(asks)


def test_a_head_that_came_in_time_waits_for_its_picture() -> None:
    brush = Brush(gate=threading.Semaphore(0))
    with running(served_by([brush], head=0.1)) as address, sent(address, b'{"prompt": "a"}') as asking:
        time.sleep(0.4)
        assert brush.gate is not None
        brush.gate.release(50)
        assert asking.recv(100).startswith(b"HTTP/1.1 200")


@contextlib.contextmanager
def ending(brush: Brush, *, taking: float = 60.0) -> Iterator[tuple[Server, threading.Thread, Served]]:
    """A server that paints for a client which does not take its answer, in a thread that has to end."""
    served = served_by([brush], bounds=Bounds(bytes=10))
    kind = type("Impatient", (Connection,), {"ending": taking})
    with bound(served.settings) as listening:
        server, address = Server(application(served), served.queue.close, kind), address_of(listening)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        with sent(address, b'{"prompt": "a", "n": 4, "output_format": "png"}'):
            yield server, thread, served
            thread.join(5)
            assert not thread.is_alive()


class Noisy(Brush):
    """Paints pictures that no format makes small."""

    def run(self, job: Job, on_step: OnStep) -> list[Image.Image]:
        super().run(job, on_step)
        return [Image.frombytes("RGB", (1024, 1024), os.urandom(3 * 2**20))] * job.count


@pytest.mark.fifth
def test_at_the_end_an_answer_that_nobody_takes_is_not_waited_for() -> None:
    brush = Noisy()
    with ending(brush, taking=0.3) as (server, thread, served):
        wait(lambda: bool(brush.painted) and not served.queue.tickets())
        server.handle_exit(signal.SIGTERM, None)
        assert thread.is_alive()


@pytest.mark.parametrize(
    ("running", "waiting", "said"),
    [
        (0, 0, ""),
        (1, 0, "the server ends when what is painted is finished (1 job); ask again to end now"),
        (2, 1, "is finished (2 jobs), and 1 job that waits is told that it ends; ask again to end now"),
        (1, 3, "is finished (1 job), and 3 jobs that wait are told that it ends; ask again to end now"),
        (0, 1, "the server ends: 1 job that waits is told that it ends"),
    ],
)
def test_at_the_end_it_says_how_many_jobs_it_finishes_and_how_many_it_does_not_begin(
    running: int, waiting: int, said: str
) -> None:
    states = [RUNNING] * running + [WAITING] * waiting
    told = last_words([Ticket(Job("a"), state=state) for state in states])
    assert told.endswith(said)
    assert bool(told) == bool(said)


def test_a_second_signal_ends_it_while_it_paints() -> None:
    brush = Brush(gate=threading.Semaphore(0))
    with ending(brush) as (server, thread, served):
        wait(lambda: any(one.state == "running" for one in served.queue.tickets()))
        (ticket,) = served.queue.tickets()
        server.handle_exit(signal.SIGTERM, None)
        time.sleep(0.2)
        assert thread.is_alive()
        server.handle_exit(signal.SIGTERM, None)
        wait(lambda: ticket._is_left)
        assert brush.gate is not None
        brush.gate.release(50)
    served.queue.join(5)
    assert brush.painted == []
