"""Every wrong spec gets an error that points at the place, says what was expected and offers the nearest name."""

from collections.abc import Callable

import pytest

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import SpecError
from dovetail.compiler.spec import (
    parse_backend,
    parse_budget,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
)

PIPELINE = {"transformer": "diffusion", "text_encoder": "te", "text_encoder_2": "te", "vae": "vae"}
RIG = Rig.parse("cuda0=24GiB,cuda1=16GiB")

WRONG: list[tuple[Callable[..., object], object, str, str]] = [
    # the parser, what it is given, the text under the caret, the problem
    (parse_backend, "difusion=cuda0", "difusion", "no role or component is called 'difusion'"),
    (parse_backend, "te=cpu,text_encoder_3=cpu", "text_encoder_3", "no role or component"),
    (parse_backend, "vae=cpu, =cpu", "", "a key is missing before '='"),
    (parse_backend, "te=cu da", "cu da", "is not the name of a device"),
    (parse_backend, "te=cuda0;vae=cpu", "cuda0;vae=cpu", "is not the name of a device"),
    (parse_backend, "te=cpu,vae=cuda0&auto", "auto", "cannot stand in a list"),
    (parse_backend, "gpu&cuda0", "gpu", "cannot stand in a list"),
    (parse_backend, "cuda0&default", "default", "cannot stand in a list"),
    (parse_backend, "te=cuda0&", "", "'an empty name' cannot stand in a list"),
    (parse_backend, "diffusion=cuda0&CUDA:0", "CUDA:0", "cuda0 is named twice"),
    (parse_backend, "te=disk", "disk", "nothing can run on the disk"),
    (parse_backend, {"te": None}, "None", "a spec cannot hold None"),
    (parse_backend, {"te": {"a": 1}}, "{'a': 1}", "a spec cannot hold"),
    (parse_backend, True, "True", "a spec cannot hold True"),
    (parse_params_backend, "te=cpu&cuda0", "cpu&cuda0", "not in a list"),
    (parse_params_backend, "balanced", "balanced", "cannot be kept 'balanced'"),
    (parse_split_mode, "diffusion=rwo", "rwo", "'rwo' is not a split mode"),
    (parse_split_mode, "diffusion=", "", "'' is not a split mode"),
    (parse_tensor_split, "3,x", "x", "'x' is not a share"),
    (parse_tensor_split, "te=1:-1", "-1", "'-1' is not a share"),
    (parse_tensor_split, "0,0", "0,0", "no device gets anything"),
    (parse_tensor_split, "3,1,te=1:1", "3", "a share stands alone"),
    (parse_tensor_split, "te=inf:1", "inf", "'inf' is not a share"),
]
WRONG_BUDGETS: list[tuple[object, str, str]] = [
    ("lots", "lots", "'lots' is not a size"),
    ("cuda0=6,cuda1=2XB", "2XB", "'2XB' is not a size"),
    ("cuda 0=6", "cuda 0", "is not the name of a device"),
    ("120%", "120%", "no device has more than 100%"),
    ("--6", "-6", "'-6' is not a size"),
    ("cuda0=", "", "'' is not a size"),
    ("0.5B", "0.5B", "'0.5B' comes to no byte, which limits nothing"),
    ("1e-10", "1e-10", "comes to no byte"),
    ("8,cuda1=0%", "0%", "comes to no byte"),
    ("-0%", "-0%", "comes to no byte"),
    ("cuda0=0GiB", "0GiB", "comes to no byte"),
    ("1e999", "1e999", "'1e999' is larger than any memory"),
    ("cuda0=-1e300TiB", "1e300TiB", "is larger than any memory"),
    ("inf", "inf", "'inf' is not a size"),
    ("nan", "nan", "'nan' is not a size"),
    (float("inf"), "inf", "'inf' is not a size"),
    ("５", "５", "'５' is not a size"),
]


def check(error: SpecError, under: str, problem: str) -> None:
    """The error shows the text, and its carets stand under the wrong piece of it."""
    assert problem in error.problem
    assert error.text[error.start : error.end] == under
    lines = str(error).splitlines()
    assert lines[1] == f"  {error.text}"
    assert lines[2] == "  " + " " * error.start + "^" * max(1, len(under))
    assert error.exit_code == 2


@pytest.mark.parametrize(("parse", "given", "under", "problem"), WRONG)
def test_a_wrong_spec_is_refused_at_the_place(
    parse: Callable[..., object], given: object, under: str, problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse(given, PIPELINE)
    check(caught.value, under, problem)


@pytest.mark.parametrize(("given", "under", "problem"), WRONG_BUDGETS)
def test_a_wrong_budget_is_refused_at_the_place(given: object, under: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_budget(given)
    check(caught.value, under, problem)


@pytest.mark.parametrize(
    ("text", "under", "problem"),
    [
        ("te=cpu,vae=cuda7", "cuda7", "no device is called 'cuda7'"),
        ("diffusion=cuda0&cud", "cud", "'cud' may be cuda0 or cuda1"),
        ("xpu", "xpu", "no device is called 'xpu'"),
        ("diffusion=cuda0&0", "0", "cuda0 is named twice"),
    ],
)
def test_a_device_that_the_rig_lacks_is_refused_at_the_place(text: str, under: str, problem: str) -> None:
    backend = parse_backend(text, PIPELINE)
    with pytest.raises(SpecError) as caught:
        for name, role in PIPELINE.items():
            backend.devices_for(name, role, RIG)
    check(caught.value, under, problem)


def test_gpu_on_a_machine_without_one_is_refused() -> None:
    with pytest.raises(SpecError, match="this rig has no GPU"):
        parse_backend("te=gpu").devices_for("text_encoder", "te", Rig.parse("cpu=8GiB"))


@pytest.mark.parametrize(
    ("rig", "said"),
    [
        ("2x24", "expected a size with its unit: 2x24GiB"),
        ("RTX 4091 + RTX 3060", "did you mean 'rtx 4090'"),
        ("2x RTX 3091, 64GiB", "did you mean 'rtx 309"),
        ("rtx3091", "did you mean 'rtx 309"),
        ("2xRTX4091 24GB", "did you mean 'rtx 4090"),
        ("cuda0=24GiB@RTX 3091", "did you mean 'RTX 309"),
        ("cuda٣=24GiB", "'cuda٣' is not the name of a device"),
        ("1e300TiB", "'1e300TiB' is larger than any memory"),
        ("cuda0=24GiB,cpu=1e30", "'1e30' is larger than any memory"),
    ],
)
def test_a_rig_that_is_nearly_right_is_answered_with_what_is(rig: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Rig.parse(rig)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("difusion=cpu", "diffusion"),
        ("transfromer=cpu", "transformer"),
        ("txt_encoder_2=cpu", "text_encoder_2"),
        ("vea=cpu", "vae"),
    ],
)
def test_the_nearest_key_is_offered(text: str, nearest: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean '{nearest}'"):
        parse_backend(text, PIPELINE)


@pytest.mark.parametrize("text", ["smi1=2GiB,cpu=8GiB", "dua1=2GiB"])
def test_the_nearest_device_of_a_rig_is_offered_with_its_number(text: str) -> None:
    with pytest.raises(SpecError, match=r"did you mean '(sim1|cuda1)'"):
        Rig.parse(text)


@pytest.mark.parametrize("text", ["sim99999", "cuda12345=24GiB"])
def test_what_was_given_is_not_what_was_meant(text: str) -> None:
    for read in (Rig.parse, RIG.find):
        with pytest.raises(SpecError) as caught:
            read(text)
        assert "99999" not in (caught.value.nearest or "")
        assert "12345" not in (caught.value.nearest or "")


def test_an_error_is_shown_with_a_caret_what_was_expected_and_the_nearest_name() -> None:
    with pytest.raises(SpecError) as caught:
        parse_split_mode("te=layer,vae=rwo")
    assert str(caught.value).splitlines() == [
        "'rwo' is not a split mode",
        "  te=layer,vae=rwo",
        "               ^^^",
        "expected layer, row, tensor, sequence, batch, spatial, batch+sequence, batch+tensor, auto",
        "did you mean 'row'?",
    ]


@pytest.mark.parametrize("text", ["cuda0,cuda1", "te=cpu,cuda0,cuda1", "cuda:0,1"])
def test_two_bare_targets_are_refused_and_a_list_is_offered(text: str) -> None:
    with pytest.raises(SpecError, match=r"did you mean 'cuda:?0&(cuda)?1'"):
        parse_backend(text)


def test_a_plus_joins_devices_as_well_for_shells() -> None:
    assert parse_backend("diffusion=cuda0+cuda1,te=cpu") == parse_backend("diffusion=cuda0&cuda1,te=cpu")


def test_a_budget_of_a_simulated_device_that_nothing_is_placed_on_is_refused() -> None:
    rig = Rig.of(sim0=1000, cpu=1000)
    with pytest.raises(SpecError, match="nothing is placed on sim9"):
        parse_budget("sim9=5MiB").limits(rig)
    assert parse_budget("cpu=5MiB").limits(Rig.of(sim0=1000))
