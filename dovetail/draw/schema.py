"""The schema of what `dovetail show --as json` prints: a list of components, each with all that is known of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, RootModel


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ShownDevice(_Strict):
    """A device of a component, and the weights whose home it is."""

    name: str
    total_bytes: int
    free_bytes: int = Field(description="what may be used of it")
    weights: int = Field(description="how many weights, slices counted each")
    weight_bytes: int


class ShownBlock(_Strict):
    """One repeated unit, and its weights."""

    name: str
    bytes: int


class ShownSegment(_Strict):
    """Consecutive operations on one device, or on devices that share them."""

    index: int
    device: str = Field(description="where what it makes is whole")
    runs_on: list[str]
    modules: list[str]
    weight_bytes: int
    nodes: list[str]


class ShownCrossing(_Strict):
    """A value that goes from one device to another, once a call."""

    value: str
    bytes: int
    source: str
    target: str
    producer: int | None = Field(description="the segment that made it; null for an input")
    consumer: int | None = Field(description="the first segment that reads it there; null for a result")


class ShownNode(_Strict):
    """An operation, an input or a weight."""

    name: str
    op: str
    inputs: list[str]
    shapes: list[list[int | str]] = Field(description="of each tensor it yields; text is an expression of symbols")
    dtypes: list[str]
    device: str | None
    split: list[list[int]] = Field(description="the columns that each device has; empty where one device has all")
    segment: int | None
    weight: str | None
    eligible: bool | None = Field(description="of a weight whether a row split slices it; null for what is no weight")
    why_not: str = Field(description="why the weight is not eligible; empty where it is")
    module: str
    source: str


class ShownComponent(_Strict):
    """A program with its placement and its schedule."""

    component: str
    class_: str = Field(alias="class")
    passes: list[str]
    devices: list[ShownDevice]
    blocks: list[ShownBlock]
    segments: list[ShownSegment]
    crossings: list[ShownCrossing]
    schedule: list[str]
    nodes: list[ShownNode] = []


class Shown(RootModel[list[ShownComponent]]):
    """What `dovetail show --as json` prints."""
