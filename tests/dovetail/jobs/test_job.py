"""Jobs as values: JSON in and out, other processes, and bounds."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.errors import UsageError
from dovetail.jobs.bounds import Bounds
from dovetail.jobs.job import Job

NUMBERS = st.floats(0, 1000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JOBS = st.builds(
    Job,
    prompt=TEXTS,
    negative_prompt=st.none() | TEXTS,
    width=st.none() | st.integers(1, 4096),
    height=st.none() | st.integers(1, 1024),
    steps=st.none() | st.integers(1, 200),
    guidance=st.none() | NUMBERS,
    cfg_scale=st.none() | NUMBERS,
    seed=st.integers(0, 2**64 - 16),
    loras=st.lists(st.tuples(TEXTS, st.floats(-2, 2)), max_size=3).map(tuple),
    image=st.just(b"\x89PNG\x00\xff"),
    mask=st.none() | st.binary(max_size=40),
    strength=st.none() | st.floats(0, 1),
    count=st.integers(1, 16),
)


@given(JOBS)
def test_a_job_is_the_same_after_json_and_after_pickle(job: Job) -> None:
    assert Job.from_json(job.to_json()) == job
    assert pickle.loads(pickle.dumps(job)) == job
    Bounds().check(job)


@given(JOBS)
def test_each_picture_of_a_job_is_a_job_with_its_own_seed(job: Job) -> None:
    each = job.each()
    assert [one.seed for one in each] == list(job.seeds)
    assert {one.count for one in each} == {1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "prompt is missing: give it"),
        ('{"prompt": 7}', "prompt has to be a text, and is a number"),
        ('{"prompt": "a", "steps": "4"}', "steps has to be a whole number, and is a text: write it without quotes"),
        ('{"prompt": "a", "seed": 1.5}', "seed has to be a whole number, and is a number that is not whole"),
        ('{"prompt": "a", "guidance": NaN}', "guidance has to be a finite number"),
        ('{"prompt": "a", "path": "/etc/passwd"}', "path is not known here: leave it out"),
        ("[" * 5000, "nested too deeply"),
        ('{"prompt": "\\ud800"}', "this is no job"),
        ("[1]", "this is no job"),
    ],
)
def test_what_is_no_job_is_said_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="this is no job") as told:
        Job.from_json(text)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job("a", width=5000), "width is 5000, and may be 1 to 4096"),
        (Job("a", height=0), "height is 0"),
        (Job("a", width=4096, height=4096), "4096 x 4096 has more than"),
        (Job("a", steps=201), "steps is 201, and may be 1 to 200"),
        (Job("a", steps=10**6000), "a number of more than 20 digits"),
        (Job("a", count=17), "count is 17"),
        (Job("a", seed=-1), "seed is -1"),
        (Job("a", seed=2**64), "seed is 1844"),
        (Job("a", guidance=-1.0), "guidance is -1"),
        (Job("a", strength=0.5), "give that picture too"),
        (Job("a", mask=b"x"), "give that picture too"),
        (Job("a" * 20_001), "prompt has 20001 characters"),
        (Job("a", image=b"x" * (16 * 2**20 + 1)), "image has 16777217 bytes"),
        (Job("a", loras=(("x", 1.0),) * 9), "9 LoRAs are asked for"),
        (Job("a", loras=(("x", 1e9),)), "scale 1e+09"),
    ],
)
def test_a_job_beyond_the_bounds_is_refused_with_what_may_be(job: Job, message: str) -> None:
    with pytest.raises(UsageError) as told:
        Bounds().check(job)
    assert message in str(told.value)
