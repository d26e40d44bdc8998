"""A server of the demo under load, and under requests of no good will: ``python -m benchmarks.serve``.

    python -m benchmarks.serve load [--requests 500] [--clients 20] [--steps 4] [--seed N] [--replicas N]
    python -m benchmarks.serve cost [--requests 60] [--rounds 3]
    python -m benchmarks.serve hostile [--requests 300] [--seed N]

``load``: clients ask for pictures of four sizes, some hang up, some send bad bodies: what was lost, came twice or out
of order, the server's memory, and how long answers took. With replicas one of them is killed (SIGKILL) after a quarter
of the answers, and answers of one client may change their order. ``cost``: CPU seconds of the server beside those of
the same calls in a loop. ``hostile``: answers by status, files that were touched, memory. Exit code 1 if something was
wrong. All that paint compute on one thread: with another number of threads a processor rounds otherwise, and threads
that wait for each other use it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import io
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from dovetail.jobs.job import Job
from testbed.hostile import Drawn, asked
from testbed.processes import children_of
from testbed.serving import Brush, running
from testbed.serving import served_by as brushed

SIZES = ((64, 64), (64, 48), (48, 64), (96, 64))
GAP = 0.02
"""Seconds between two requests of one client, which does not wait for answers before it sends the next."""
BAD = (b"{", b'{"prompt": 5}', b"[]", b'{"prompt": "a", "size": "x"}', b'{"prompt": "a", "seed": "b"}', b"\xff\xfe")
AT_ONCE = 3
"""How many answers a client waits for at the same time."""


@dataclass
class Process:
    """A server in a process of its own."""

    address: str
    pid: int

    @property
    def rss(self) -> int:
        """Bytes of memory that it has."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu(self) -> float:
        """CPU seconds that it has used, by its clock; `stat` in /proc counts in ticks of 10 ms."""
        return time.clock_gettime(~self.pid << 3 | 2)  # clock_getcpuclockid(3), as Linux makes it


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Process]:
    """`dovetail serve` of the demo at any port; it has to end by itself when it is asked to."""
    command = [sys.executable, "-m", "dovetail", "serve", "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"is served at (http://\S+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        try:
            yield Process(found[1], process.pid)
        finally:
            process.terminate()
            code = process.wait(60)
            print(f"it ended with {code}, and said: {process.stderr.read().strip()[-500:] or 'nothing'}")


def job_of(number: int, steps: int) -> Job:
    """The job of a request, each of which has its own seed."""
    width, height = SIZES[number % len(SIZES)]
    return Job("a red circle", width=width, height=height, steps=steps, seed=number)


@dataclass
class Found:
    """What came of the requests of a load."""

    statuses: Counter[str] = field(default_factory=Counter)
    pictures: dict[int, str] = field(default_factory=dict)
    twice: list[int] = field(default_factory=list)
    order: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def _client(
    number: int, process: Process, mine: list[int], kinds: dict[int, str], steps: int, found: Found
) -> None:
    room, tasks = asyncio.Semaphore(AT_ONCE), []
    async with httpx2.AsyncClient(base_url=process.address, timeout=600) as client:
        for one in mine:
            await room.acquire()
            tasks.append(asyncio.ensure_future(_request(number, process, client, one, kinds[one], steps, found)))
            tasks[-1].add_done_callback(lambda _: room.release())
            await asyncio.sleep(GAP)
        await asyncio.gather(*tasks)


async def _request(
    number: int, process: Process, client: httpx2.AsyncClient, one: int, kind: str, steps: int, found: Found
) -> None:
    headers = {"Content-Type": "application/json"}
    if kind == "bad":
        answer = await client.post("/v1/images/generations", content=BAD[one % len(BAD)], headers=headers)
        found.statuses[f"bad body: {answer.status_code}"] += 1
        return
    job = job_of(one, steps)
    body = {"prompt": job.prompt, "size": f"{job.width}x{job.height}", "seed": job.seed, "steps": steps}
    begun = time.perf_counter()
    asking = client.post("/v1/images/generations", json=body)
    if kind == "hangs up":
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asking, 0.05 + one % 7 / 5)
            found.statuses["answered before it hung up"] += 1
            return
        found.statuses["hung up"] += 1
        return
    answer = await asking
    found.statuses[f"asked: {answer.status_code}"] += 1
    if answer.status_code != 200:
        found.wrong.append(answer.text[:200])
        return
    found.seconds.append(time.perf_counter() - begun)
    found.memory.append(process.rss)
    datum = answer.json()["data"][0]
    if datum["seed"] in found.pictures:
        found.twice.append(datum["seed"])
    found.pictures[datum["seed"]] = hashlib.sha256(_pixels(datum["b64_json"])).hexdigest()
    found.order[number].append(datum["seed"])


async def _kill_one(process: Process, found: Found, after: int) -> str:
    """Kills a replica of a server after so many answers; says which, and how many there are in the end."""
    while len(found.pictures) < after:
        await asyncio.sleep(0.05)
    killed = children_of(process.pid)[0]
    os.kill(killed, signal.SIGKILL)
    while killed in children_of(process.pid):
        await asyncio.sleep(0.05)
    return f"replica {killed} was killed after {after} answers"


def _pixels(text: str) -> bytes:
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(text))).tobytes()


def load(requests: int, clients: int, steps: int, seed: int, replicas: int = 1) -> list[str]:
    """Asks a server as many clients do, and kills a replica meanwhile if there are some; says what was wrong."""
    drawn = random.Random(seed)
    odd = drawn.sample(range(requests), requests // 10)
    kinds = dict.fromkeys(range(requests), "asks")
    kinds |= dict.fromkeys(odd[: len(odd) // 2], "hangs up") | dict.fromkeys(odd[len(odd) // 2 :], "bad")
    found = Found()

    async def all_clients(process: Process) -> None:
        shares = [list(range(number, requests, clients)) for number in range(clients)]
        killing = asyncio.ensure_future(_kill_one(process, found, requests // 4)) if replicas > 1 else None
        await asyncio.gather(
            *(_client(number, process, mine, kinds, steps, found) for number, mine in enumerate(shares))
        )
        if killing is not None:
            print(await killing)

    over = ["--replicas", str(replicas), "--backend", "+".join(f"sim{at}" for at in range(replicas))]
    # Who hung up sends the next request at once, and the server may hear of that one first: room for both.
    most = clients * AT_ONCE + len(odd)
    with serving("--queue", str(most), *(over if replicas > 1 else ())) as process:
        begun, cpu = time.perf_counter(), process.cpu
        asyncio.run(all_clients(process))
        took, used = time.perf_counter() - begun, process.cpu - cpu
        state = httpx2.get(f"{process.address}/api/state").json()
        told = httpx2.get(f"{process.address}/metrics").text
    wanted = [one for one, kind in kinds.items() if kind == "asks"]
    lost = sorted(set(wanted) - found.pictures.keys())
    disorder = [number for number, seeds in found.order.items() if replicas == 1 and seeds != sorted(seeds)]
    print(f"{requests} requests of {clients} clients in {took:.1f} s, {used:.1f} s of CPU; seed {seed}, {steps} steps")
    print(", ".join(f"{what} × {count}" for what, count in sorted(found.statuses.items())))
    print(f"lost {len(lost)}, twice {len(found.twice)}, clients whose order changed {len(disorder)}")
    cuts = statistics.quantiles(found.seconds, n=20)
    print(f"seconds of an answer: p50 {statistics.median(found.seconds):.2f}, p95 {cuts[18]:.2f}")
    first, last = (statistics.mean(part) / 2**20 for part in (found.memory[:50], found.memory[-50:]))
    print(f"memory of the server: first 50 {first:.1f} MiB, last 50 {last:.1f} MiB ({last - first:+.1f})")
    print(*(line for line in told.splitlines() if line.startswith("dovetail_jobs_total")), sep="\n")
    same = _compared(found.pictures, wanted, steps)
    wrong = [*found.wrong, *(f"lost {one}" for one in lost), *(f"twice {one}" for one in found.twice), *same]
    wrong += [f"order of client {number}: {found.order[number]}" for number in disorder]
    wrong += [f"{len(state['queue']['jobs'])} jobs are left"] if state["queue"]["jobs"] else []
    return wrong


def _compared(pictures: dict[int, str], wanted: list[int], steps: int) -> list[str]:
    """Which of some pictures differ from those that one process paints in a loop."""
    from dovetail.jobs.runner import Opening, Runner

    runner, sample = Runner(Opening(threads=1)), wanted[:: max(1, len(wanted) // 60)]
    own = {one: hashlib.sha256(runner.run(job_of(one, steps))[0].tobytes()).hexdigest() for one in sample}
    wrong = [f"{one} is another picture than alone" for one in sample if pictures.get(one) != own[one]]
    print(f"{len(sample) - len(wrong)} of {len(sample)} that were painted again alone are the same")
    return wrong


_BLOCK = 5
"""So many pictures are painted in one way before the other has its turn."""

BOTH = """
import io, sys
from benchmarks.serve import job_of
from dovetail.jobs.runner import Opening, Runner
from dovetail.serve.server import served_by
from dovetail.serve.work.settings import Settings
from testbed.serving import running
steps = int(sys.argv[1])
runner = Runner(Opening(threads=1))
def paint(numbers):
    for one in numbers:
        job = job_of(one, steps)
        size = {"width": job.width, "height": job.height}
        pipe, arguments = runner._call(job)
        import torch
        torch.manual_seed(one)
        made = pipe(**arguments, generator=torch.Generator("cpu").manual_seed(one))
        made.images[0].save(io.BytesIO(), format="png")
paint(range(8))
with running(served_by([runner], runner.about(), Settings(port=0))) as address:
    print(address, flush=True)
    for line in sys.stdin:
        paint(range(*map(int, line.split())))
        print("done", flush=True)
"""


ASK = """
import httpx2, sys
client = httpx2.Client(base_url=sys.argv[1], timeout=60)
for seed in range(int(sys.argv[2])):
    client.post("/v1/images/generations", json={"prompt": "a", "size": "64x64", "seed": seed}).raise_for_status()
"""


def cost(requests: int, rounds: int, steps: int) -> list[str]:
    """Prints CPU seconds of calls through a server beside those of the same calls in a loop."""
    ratios = []
    with _both(steps) as (process, loop), httpx2.Client(base_url=process.address, timeout=600) as client:
        _ask(client, range(8), steps)
        for number in range(rounds):
            alone = served = 0.0
            for first in range(0, requests, _BLOCK):  # in turns, so that a slow minute of the machine is slow for both
                numbers = range(requests)[first : first + _BLOCK]
                begun = process.cpu
                loop(numbers)
                between = process.cpu
                _ask(client, numbers, steps)
                alone += (between - begun) / requests
                served += (process.cpu - between) / requests
            ratios.append(served / alone)
            print(
                f"round {number + 1}: {1000 * alone:.1f} ms of CPU a picture in a loop, {1000 * served:.1f} ms through "
                f"the server: {100 * (served / alone - 1):+.1f} %, {1000 * (served - alone):+.2f} ms",
                flush=True,
            )
    with running(brushed([Brush(steps=steps)])) as address:
        alone = [os.times()]
        for count in (50, 300):
            subprocess.run([sys.executable, "-c", ASK, address, str(count)], check=True)
            alone.append(os.times())
    used = (alone[2].user + alone[2].system - alone[1].user - alone[1].system) / 300
    print(f"{1000 * used:.2f} ms of CPU a request, where painting takes none")
    print(f"median {100 * (statistics.median(ratios) - 1):+.1f} % of a picture of {steps} steps")
    return []


@contextlib.contextmanager
def _both(steps: int) -> Iterator[tuple[Process, Callable[[range], None]]]:
    """A server, and what has its process paint pictures of such numbers in a loop.

    It is one process with one pipeline, so that nothing differs but the way to it.
    """
    command = [sys.executable, "-c", BOTH, str(steps)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        told, said = process.stdin, process.stdout
        assert told is not None
        assert said is not None
        address = said.readline().strip()
        assert address.startswith("http"), "the server did not start"

        def loop(numbers: range) -> None:
            print(numbers.start, numbers.stop, file=told, flush=True)
            assert said.readline() == "done\n", "the loop ended"

        yield Process(address, process.pid), loop


def _ask(client: httpx2.Client, numbers: range, steps: int) -> None:
    for one in numbers:
        job = job_of(one, steps)
        body = {"prompt": job.prompt, "size": f"{job.width}x{job.height}", "seed": one, "steps": steps}
        client.post("/v1/images/generations", json=body).raise_for_status()


def hostile(requests: int, seed: int) -> list[str]:
    """Sends a server what no client of good will sends; says what was wrong."""
    wrong, statuses = [], Counter[int]()
    with tempfile.TemporaryDirectory() as folder, serving("--max-side", "128") as process:
        secret = Path(folder, "secret.png")
        secret.write_bytes(b"x")
        os.utime(secret, (1, 1))
        secrets = (str(secret), secret.as_uri(), f"{process.address}/pictures/x", "/etc/passwd", "../secret.png")
        drawn = Drawn(process.address.removeprefix("http://"), seed, secrets)
        httpx2.post(f"{process.address}/v1/images/generations", json={"prompt": "a"}, timeout=600).raise_for_status()
        memory = []
        for number in range(requests):
            one = drawn.one()
            status, answer = asked(process.address, one, 5.0)
            statuses[status] += 1
            memory.append(process.rss)
            if status >= 500 or b"Traceback" in answer:
                wrong.append(f"{status} of request {number}, {one.what}: {answer[-300:]!r}")
        if secret.stat().st_atime != 1 or list(Path(folder).iterdir()) != [secret]:
            wrong.append("a file was touched")
        is_well = httpx2.get(f"{process.address}/ready").status_code
    first, last = (statistics.mean(part) / 2**20 for part in (memory[:50], memory[-50:]))
    print("MiB after each fifth:", *(f"{memory[requests * part // 5 - 1] / 2**20:.0f}" for part in range(1, 6)))
    print(f"{requests} hostile requests, seed {seed}: " + ", ".join(f"{s} × {n}" for s, n in sorted(statuses.items())))
    print(
        f"memory: first 50 {first:.1f} MiB, last 50 {last:.1f} MiB ({last - first:+.1f}); ready afterwards: {is_well}"
    )
    return wrong


def main() -> int:
    """Prints what came of the requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "cost", "hostile"])
    parser.add_argument("--requests", type=int)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    if given.what == "load":
        wrong = load(given.requests or 500, given.clients, given.steps, given.seed, given.replicas)
    elif given.what == "cost":
        wrong = cost(given.requests or 60, given.rounds, given.steps)
    else:
        wrong = hostile(given.requests or 300, given.seed)
    for one in wrong:
        print(f"WRONG  {one}")
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
