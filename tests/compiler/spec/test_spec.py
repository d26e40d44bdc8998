"""What the placement grammar means: backends, resting places, split modes, shares and budgets."""

import pytest
import torch

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import SpecError
from dovetail.compiler.spec import (
    ROLES,
    parse_backend,
    parse_budget,
    parse_max_memory,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
    role_of,
    role_of_component,
    with_cpu_flags,
    with_offload_flag,
)
from dovetail.compiler.units import GIB, MIB

PIPELINE = {"transformer": "diffusion", "text_encoder": "te", "text_encoder_2": "te", "vae": "vae"}
RIG = Rig.parse("cuda0=24GiB,cuda1=16GiB,xpu0=8GiB,cpu=64GiB")


def placed(given: object, rig: Rig = RIG) -> dict[str, str]:
    """Where each component of the pipeline runs."""
    backend = parse_backend(given, PIPELINE)
    return {name: "&".join(map(str, backend.devices_for(name, role, rig))) for name, role in PIPELINE.items()}


def everywhere(device: str) -> dict[str, str]:
    return dict.fromkeys(PIPELINE, device)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cuda1", "cuda1"),
        ("CUDA:1", "cuda1"),
        ("x", "xpu0"),
        ("all=cpu", "cpu"),
        ("default=cpu", "cpu"),
        ("*=cpu", "cpu"),
        ("auto", "cuda0"),
        ("default", "cuda0"),
        ("", "cuda0"),
        ("gpu", "cuda0"),
        (" , cpu , ", "cpu"),
        ("cuda0&cpu", "cuda0&cpu"),
        ("balanced", "cuda0&cuda1&xpu0"),
        ("0", "cuda0"),
        ("sim4", "sim4"),
    ],
)
def test_a_bare_target_is_the_default_of_every_component(text: str, device: str) -> None:
    assert placed(text) == everywhere(device)


def test_each_role_has_its_own_list_and_the_first_is_the_main_device() -> None:
    found = placed("te=cpu,vae=cuda0,diffusion=cuda1&cuda0")
    assert found == {"transformer": "cuda1&cuda0", "text_encoder": "cpu", "text_encoder_2": "cpu", "vae": "cuda0"}


def test_every_role_takes_a_list() -> None:
    assert placed("vae=cuda0&cuda1")["vae"] == "cuda0&cuda1"


def test_a_later_item_overrides_an_earlier_one() -> None:
    assert placed("te=cpu,TE=cuda1")["text_encoder"] == "cuda1"


def test_a_components_name_wins_over_its_role_and_the_role_over_the_default_in_any_order() -> None:
    found = placed("text_encoder_2=cuda1,te=cpu,all=cuda0")
    assert found == {"transformer": "cuda0", "text_encoder": "cpu", "text_encoder_2": "cuda1", "vae": "cuda0"}


def test_a_components_own_name_means_that_component_alone() -> None:
    assert placed("text_encoder=cpu,cuda0")["text_encoder_2"] == "cuda0"
    assert placed("text-encoders=cpu,cuda0")["text_encoder_2"] == "cpu"


@pytest.mark.parametrize("role", ROLES)
def test_every_alias_of_a_role_means_the_role(role: str) -> None:
    for name in (role, *ROLES[role]):
        assert role_of(name.upper()) == role
        assert parse_backend(f"{name}=cpu") == parse_backend({role: "cpu"})


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("Text-Encoder", "te"),
        ("T5-XXL", "te"),
        ("clip_vision", "clip_vision"),
        ("first_stage", "vae"),
        ("ESRGAN", "upscaler"),
        ("pm_id", "photomaker"),
        ("a-detailer", "detector"),
        ("hi_res", "upscaler"),
        ("tokenizer", None),
        ("", None),
    ],
)
def test_case_hyphens_and_underscores_do_not_count_in_roles(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_components_get_roles_from_their_names() -> None:
    names = ("transformer", "transformer_2", "unet", "text_encoder_3", "image_encoder", "vae", "controlnet", "vocoder")
    roles = ("diffusion", "diffusion", "diffusion", "te", "clip_vision", "vae", "controlnet", "vocoder")
    assert tuple(map(role_of_component, names)) == roles


def test_a_component_of_no_known_role_is_a_key_too() -> None:
    backend = parse_backend("vocoder=cpu", {"vocoder": "vocoder"})
    assert backend.devices_for("vocoder", "vocoder", RIG) == (RIG.host,)


@pytest.mark.parametrize(
    "given",
    [
        {"diffusion": ["cuda0", "cuda1"], "te": "cpu", "vae": 0},
        {"transformer": "cuda:0&cuda:1", "te": torch.device("cpu"), "vae": torch.device("cuda:0")},
        {"": "cpu", "diffusion": (0, 1), "vae": RIG.find("cuda0")},
        "diffusion=cuda0&cuda1,te=cpu,vae=cuda0",
    ],
)
def test_dicts_of_names_numbers_and_devices_say_the_same_as_text(given: object) -> None:
    assert placed(given) == placed("cpu,diffusion=cuda0&cuda1,vae=cuda0")


@pytest.mark.parametrize(
    ("given", "device"),
    [
        (None, "cuda0"),
        (torch.device("cuda:1"), "cuda1"),
        (1, "cuda1"),
        (["cuda1", "cpu"], "cuda1&cpu"),
    ],
)
def test_one_value_is_the_default(given: object, device: str) -> None:
    assert placed(given) == everywhere(device)


def test_without_a_gpu_auto_and_balanced_are_the_host() -> None:
    host = Rig.parse("cpu=8GiB")
    assert placed("auto", host) == placed("balanced", host) == everywhere("cpu")


def test_a_spec_brings_the_simulated_devices_that_it_names() -> None:
    rig = parse_backend("diffusion=sim0&sim1,te=sim1,vae=auto").extend(Rig.parse("cpu=8GiB"))
    assert [device.name for device in rig] == ["cpu", "sim0", "sim1"]
    assert rig.present


def test_keys_that_meet_no_component_are_told() -> None:
    backend = parse_backend("controlnet=cpu,te=cpu,text_encoder_2=cuda0", PIPELINE)
    assert backend.unused(PIPELINE) == ("controlnet",)


def test_weights_rest_where_they_run_on_a_device_or_on_disk() -> None:
    resting = parse_params_backend("te=cpu,vae=disk", PIPELINE)
    assert resting.resting_place("text_encoder", "te", RIG) == RIG.host
    assert resting.resting_place("vae", "vae", RIG) == "disk"
    assert resting.resting_place("transformer", "diffusion", RIG) is None


def test_the_old_flags_go_before_the_items_so_that_these_win() -> None:
    text = with_cpu_flags("vae=cuda0", clip=True, vae=True, control_net=True)
    assert text == "te=cpu,vae=cpu,controlnet=cpu,vae=cuda0"
    assert placed(text)["vae"] == "cuda0"
    assert with_cpu_flags("", vae=True) == "vae=cpu"
    assert with_offload_flag("cuda0", offload_to_cpu=True) == "*=cpu,cuda0"
    assert with_offload_flag("te=disk") == "te=disk"


def test_split_modes_are_layer_unless_told() -> None:
    modes = parse_split_mode("diffusion=ROW,te=tensor", PIPELINE)
    assert modes.mode_for("transformer", "diffusion") == "row"
    assert modes.mode_for("text_encoder", "te") == "tensor"
    assert modes.mode_for("vae", "vae") == "layer"
    assert parse_split_mode("row").mode_for("vae", "vae") == "row"
    assert parse_split_mode(None).mode_for("vae", "vae") == "layer"


@pytest.mark.parametrize(
    "given", ["3,1", "3:1", "3/1", [3, 1], (6.0, 2), "diffusion=3:1,te=1:1", {"diffusion": [3, 1]}]
)
def test_shares_are_fractions_of_the_whole(given: object) -> None:
    split = parse_tensor_split(given, PIPELINE)
    assert split.shares_for("transformer", "diffusion", RIG.devices[:2]) == (0.75, 0.25)


def test_a_component_on_one_device_is_whole_there() -> None:
    assert parse_tensor_split("3,1").shares_for("vae", "vae", ["cpu"]) == (1.0,)


def test_nothing_is_said_about_shares_unless_asked() -> None:
    assert parse_tensor_split("te=1:1").shares_for("transformer", "diffusion", RIG.devices) is None


def test_shares_that_do_not_match_the_devices_are_refused() -> None:
    with pytest.raises(SpecError, match=r"transformer has 3 shares for 2 devices \(cuda0, cuda1\)"):
        parse_tensor_split("3,1,1").shares_for("transformer", "diffusion", RIG.devices[:2])


def test_one_share_for_two_devices_is_called_one_share() -> None:
    with pytest.raises(SpecError, match=r"transformer has 1 share for 2 devices"):
        parse_tensor_split("1").shares_for("transformer", "diffusion", RIG.devices[:2])


def test_a_wrong_resting_place_is_told_of_the_disk_and_offered_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"expected disk, device, one of .*\ndid you mean 'disk'"):
        parse_params_backend("te=disc", PIPELINE).resting_place("text_encoder", "te", RIG)


def test_a_wrong_device_to_run_on_is_not_told_of_the_disk() -> None:
    with pytest.raises(SpecError, match=r"^(?s:(?!.*disk,).*no device is called 'disc'.*)$"):
        parse_backend("te=disc", PIPELINE).devices_for("text_encoder", "te", RIG)


CARD = Rig.of(cuda0=(20 * GIB, 24 * GIB))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("6", 6 * GIB),
        (6, 6 * GIB),
        (1.5, 3 * GIB // 2),
        ("6GiB", 6 * GIB),
        ("800MiB", 800 * MIB),
        ("50%", 12 * GIB),
        ("0", 20 * GIB),
        ("", 20 * GIB),
        (None, 20 * GIB),
        ("0.0", 20 * GIB),
        (0, 20 * GIB),
        (0.0, 20 * GIB),
        ("cuda0=0", 20 * GIB),
        ("-100%", 0),
        ("1B", 1),
        ("-4", 16 * GIB),
        ("-25%", 14 * GIB),
        ("100%", 20 * GIB),
        ("30", 20 * GIB),
        ("-30", 0),
    ],
)
def test_a_budget_is_what_may_be_used_of_a_device(given: object, size: int) -> None:
    assert parse_budget(given).limits(CARD) == {Device("cuda"): size}


def test_budgets_may_differ_from_device_to_device() -> None:
    limits = parse_budget("cuda0=6,CUDA:1=2GiB,-1,cpu=50%").limits(RIG)
    assert list(limits.values()) == [6 * GIB, 2 * GIB, 7 * GIB, 32 * GIB]


def test_an_amount_without_a_device_is_for_each_gpu_and_for_the_host_only_where_it_is_alone() -> None:
    assert list(parse_budget("6").limits(RIG).values()) == [6 * GIB, 6 * GIB, 6 * GIB, 64 * GIB]
    alone = RIG.only([RIG.host])
    assert list(parse_budget("6").limits(alone).values()) == [6 * GIB]


def test_a_budget_for_a_device_that_is_not_there_is_refused_at_the_place() -> None:
    with pytest.raises(SpecError, match="no device is called 'cuda5'") as caught:
        parse_budget("cuda0=6,cuda5=1").limits(RIG)
    assert caught.value.start == 8


def test_max_memory_counts_bytes_and_numbers_the_gpus() -> None:
    limits = parse_max_memory({0: "10GiB", 1: 5 * 2**30, "xpu:0": 0, "cpu": "30GiB"}).limits(RIG)
    assert list(limits.values()) == [10 * GIB, 5 * GIB, 0, 30 * GIB]


@pytest.mark.parametrize("nothing", [0, 0.0, -0.0, 0.4, "0", "0.0", "0GiB", "0 MB", "0B", "0.4B", "0%", "-0%"])
def test_what_comes_to_no_byte_of_max_memory_is_nothing_of_the_device(nothing: float | str) -> None:
    budget = parse_max_memory({0: nothing})
    assert list(budget.limits(RIG).values())[:2] == [0, 16 * GIB]
    assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize(("given", "size"), [(3e9, 3_000_000_000), (1.5, 1), (2**31, 2**31), ("1.5", 3 * GIB // 2)])
def test_numbers_of_max_memory_are_bytes_and_texts_as_in_a_budget(given: float | str, size: int) -> None:
    assert parse_max_memory({0: given}).limits(RIG)[Device("cuda")] == size


def test_a_device_object_is_a_spec() -> None:
    device: Device = RIG.find("cuda1")
    assert placed(device) == everywhere("cuda1")
