"""What a schema refuses is said in our words, whatever is wrong."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dovetail.compiler.schema_errors import told_of
from dovetail.jobs.job import Job
from dovetail.jobs.job import _adapter as jobs

PYDANTIC = re.compile("input|valid|should|pydantic|error", re.IGNORECASE)


class Asked(BaseModel):
    """A schema with a field of each kind."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    number: int = Field(0, ge=0, le=100)
    part: Annotated[float, Field(gt=0, lt=1)] = 0.5
    form: Literal["png", "jpeg"] = "png"
    name: str = Field("ab", min_length=2, max_length=4)
    names: list[str] = Field([], max_length=1)
    sizes: dict[str, float] = Field(default_factory=dict)
    stream: bool = False

    @model_validator(mode="after")
    def _check(self) -> Asked:
        if self.number == 13:
            raise ValueError("number brings bad luck: take 12")
        return self


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"number": "4"}, "number has to be a whole number, and is a text: write it without quotes"),
        ({"number": "four"}, "number has to be a whole number, and is a text"),
        ({"number": 101}, "number has to be at most 100"),
        ({"number": -1}, "number has to be at least 0"),
        ({"part": 0}, "part has to be more than 0"),
        ({"part": 1.0}, "part has to be less than 1"),
        ({"part": float("nan")}, "part has to be a finite number"),
        ({"form": "gif"}, "form has to be png or jpeg"),
        ({"name": "a"}, "name has to have at least 2 characters"),
        ({"names": ["a", "b"]}, "names has to have at most 1 entry"),
        ({"sizes": {"a": None}}, "sizes.a has to be a number, and is null"),
        ({"sizes": []}, "sizes has to be an object, and is a list"),
        ({"stream": "true"}, "stream has to be true or false, and is a text: write it without quotes"),
        ({"other": 1}, "other is not known here: leave it out"),
        ({"number": 13}, "number brings bad luck: take 12"),
        ([], "it has to be an object, and is a list"),
    ],
    ids=str,
)
def test_it_is_said_what_a_value_has_to_be_and_what_it_is(given: Any, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Asked.model_validate(given)
    assert told_of(caught.value) == told


@given(st.text(max_size=8))
def test_the_name_of_a_field_stands_on_one_line(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Asked.model_validate({"sizes": {name: None, name + "\r\n\x1b[2J": None}})
    assert told_of(caught.value).isprintable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text("abc0", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*Asked.model_fields, "other"]), VALUES, max_size=3) | VALUES)
def test_no_word_of_the_library_is_in_it(value: Any) -> None:
    try:
        Asked.model_validate(value)
    except ValidationError as error:
        assert not PYDANTIC.search(told_of(error))


@given(st.dictionaries(st.sampled_from([*Job.__dataclass_fields__, "other"]), VALUES, max_size=3) | VALUES)
def test_nor_where_a_job_is_read(value: Any) -> None:
    try:
        jobs().validate_python(value)
    except ValidationError as error:
        assert not PYDANTIC.search(told_of(error))


@pytest.mark.parametrize("text", ["{", '{"prompt": "a"', "nothing", '"\\ud800"', '{"prompt": "a", "image": "%"}'])
def test_nor_where_it_is_no_json(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        jobs().validate_json(text)
    assert not PYDANTIC.search(told_of(caught.value))
