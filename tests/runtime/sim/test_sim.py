from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from dovetail.runtime import sim

pytestmark = pytest.mark.usefixtures("sim_devices")
GRAD_MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]


@pytest.fixture(params=GRAD_MODES, ids=lambda mode: mode.__name__)
def grad_mode(request):
    with request.param():
        yield


def test_a_tensor_keeps_its_values_strides_and_device_on_the_way_there_and_back(grad_mode):
    value = torch.randn(4, 6, 5).transpose(0, 2)
    there = value.to("sim:1")
    assert there.device == torch.device("sim", 1)
    assert there.stride() == value.stride()
    assert torch.equal(there.cpu(), value)


def test_mixing_two_devices_names_the_op_and_both_devices(grad_mode):
    one, other = torch.ones(2, device="sim:0"), torch.ones(2, device="sim:1")
    with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor got tensors on sim:0 and sim:1"):
        one + other


def test_a_cpu_tensor_with_dimensions_is_refused(grad_mode):
    with pytest.raises(RuntimeError, match="sim:0 and cpu"):
        torch.cat([torch.ones(2, device="sim:0"), torch.ones(2)])


def test_a_cpu_scalar_without_dimensions_is_accepted(grad_mode):
    result = torch.tensor(2.0) * torch.ones(2, device="sim:0")
    assert result.device == torch.device("sim", 0)
    assert result.tolist() == [2.0, 2.0]


def test_a_sim_tensor_cannot_be_written_into_the_host(grad_mode):
    with pytest.raises(RuntimeError):
        torch.tensor(1.0).add_(torch.ones((), device="sim:0"))


def test_views_share_one_ledger_entry_which_dies_with_the_last_of_them(grad_mode):
    base = torch.zeros(1000, device="sim:0")
    view = base.view(10, 100)[3:].t()
    assert sim.stats(0).in_use == 4000
    del base
    assert sim.stats(0).in_use == 4000
    del view
    assert sim.stats(0).in_use == 0
    assert sim.stats(0).peak == 4000


def test_a_module_moves_between_devices_and_leaves_nothing_behind():
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))
    size = sum(p.nbytes for p in module.parameters())
    module.to("sim:0")
    module.to("sim:1")
    gc.collect()
    assert {p.device for p in module.parameters()} == {torch.device("sim", 1)}
    assert sim.stats(0).in_use == 0
    assert sim.stats(1).in_use == size
    assert module(torch.ones(1, 8, device="sim:1")).device == torch.device("sim", 1)


def test_past_its_capacity_a_device_is_out_of_memory(grad_mode):
    sim.enable({2: 1000})
    kept = torch.zeros(200, device="sim:2")
    with pytest.raises(torch.OutOfMemoryError, match="asked for 400 bytes, but 800 bytes of its 1000 bytes are in use"):
        torch.zeros(100, device="sim:2")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(100).to("sim:2")
    with pytest.raises(torch.OutOfMemoryError):
        kept + 1
    assert sim.stats(2).in_use == 800


def test_a_tensor_too_large_for_the_host_is_refused_before_it_is_made():
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(10**15, device="sim:0")


def test_an_expanded_tensor_counts_the_bytes_that_it_has():
    sim.enable({2: 16})
    kept = torch.empty_strided((4, 100), (1, 0), device="sim:2")
    assert sim.stats(2).in_use == 16
    del kept


def test_copies_are_counted_on_both_sides(grad_mode):
    there = torch.ones(100).to("sim:0").to("sim:1")
    there.cpu()
    assert (sim.stats(0).bytes_in, sim.stats(0).bytes_out) == (400, 400)
    assert (sim.stats(1).bytes_in, sim.stats(1).bytes_out) == (400, 400)


def test_enabling_again_changes_capacities_only():
    kept = torch.zeros(10, device="sim:0")
    sim.enable({0: 123})
    assert sim.capacity(0) == 123
    assert sim.stats(0).in_use == kept.nbytes
    assert sim.is_enabled()


def test_random_numbers_are_those_of_the_cpu(grad_mode):
    torch.manual_seed(3)
    there = torch.randn(5, device="sim:0")
    torch.manual_seed(3)
    assert torch.equal(there.cpu(), torch.randn(5))
    there = torch.randn(5, generator=torch.Generator("sim:0").manual_seed(4), device="sim:0")
    assert torch.equal(there.cpu(), torch.randn(5, generator=torch.Generator().manual_seed(4)))


def test_numbers_come_out_of_a_sim_tensor(grad_mode):
    value = torch.tensor([[1.5, 2.0]], device="sim:0")
    assert value[0, 1].item() == 2.0
    assert bool(value[0, 0] > 1)
    assert value.tolist() == [[1.5, 2.0]]
    assert torch.equal(value, value.clone())
    assert "sim:0" in repr(value)


def test_in_place_ops_write_through_views(grad_mode):
    base = torch.zeros(3, 4, device="sim:0")
    base[1].add_(2)
    base[:, 0] = 7
    base.view(-1)[5:6].copy_(torch.tensor([9.0]))
    expected = torch.zeros(3, 4)
    expected[1].add_(2)
    expected[:, 0] = 7
    expected.view(-1)[5:6] = 9
    assert torch.equal(base.cpu(), expected)
    assert sim.stats(0).in_use == base.nbytes


def test_in_place_reshaping_changes_the_wrapper_too(grad_mode):
    value = torch.randn(2, 3).to("sim:0")
    expected = value.cpu()
    for one in (value, expected):
        one.unsqueeze_(1).transpose_(0, 2)
    assert (value.shape, value.stride()) == (expected.shape, expected.stride())
    assert torch.equal(value.cpu(), expected)


def test_out_arguments_are_written_and_never_grown(grad_mode):
    source, target = torch.ones(4, device="sim:0"), torch.zeros(8, device="sim:0")
    torch.add(source, 1, out=target[2:6])
    assert target.tolist() == [0, 0, 2, 2, 2, 2, 0, 0]
    with pytest.raises(RuntimeError, match="larger in place"):
        torch.add(source, 1, out=torch.empty(0, device="sim:0"))


def test_complex_views_alias(grad_mode):
    pairs = torch.randn(3, 4, 2)
    there = pairs.to("sim:0")
    turned = torch.view_as_real(torch.view_as_complex(there) * torch.polar(torch.ones(4), torch.ones(4)).to("sim:0"))
    expected = torch.view_as_real(torch.view_as_complex(pairs) * torch.polar(torch.ones(4), torch.ones(4)))
    assert torch.equal(turned.cpu(), expected)
    assert torch.equal(torch.view_as_complex(there).conj().cpu(), torch.view_as_complex(pairs).conj())


def test_weights_made_outside_inference_mode_can_be_viewed_inside():
    weight = torch.ones(4, 6, device="sim:0")
    with torch.inference_mode():
        assert weight[1:3].t().sum().item() == 12
        assert F.linear(torch.ones(1, 6, device="sim:0"), weight.chunk(2)[1]).tolist() == [[6, 6]]


@pytest.mark.fifth
def test_importing_switches_nothing_on():
    code = (
        "import torch; from dovetail.runtime import sim; from dovetail.runtime.devices import transfers;"
        "assert not sim.is_enabled();"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.fifth
def test_another_private_use_backend_is_named():
    code = (
        "import torch; torch.utils.rename_privateuse1_backend('npu')\n"
        "from dovetail.runtime import sim\n"
        "try: sim.enable()\n"
        "except Exception as error: assert \"'npu' has it\" in str(error), error\n"
        "else: raise SystemExit('enabled')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fake_tensors_keep_their_simulated_device(grad_mode):
    before = sim.stats(1)
    with FakeTensorMode():
        value, other = torch.empty(3, 4, device="sim:1"), torch.empty(3, 4, device="sim:0")
        heads = torch.empty(1, 2, 8, 16, device="sim:1")
        results = [
            value + 1, value.t()[1:], F.linear(value, value), F.layer_norm(value, (4,)), value.view(-1),
            F.scaled_dot_product_attention(heads, heads, heads), torch.arange(3, device="sim:1"),
            F.conv2d(heads, torch.empty(3, 2, 3, 3, device="sim:1")), other.to("sim:1"), torch.zeros_like(value),
        ]  # fmt: skip
        assert {one.device for one in results} == {torch.device("sim", 1)}
        with pytest.raises(RuntimeError, match=r"sim:1(,| and) sim:0"):
            value + other
    assert sim.stats(1) == before


def test_a_module_can_be_copied_with_its_weights():
    module = torch.nn.Linear(4, 4).to("sim:0")
    other = copy.deepcopy(module)
    assert isinstance(other.weight, torch.nn.Parameter)
    other.weight.data.zero_()
    assert module.weight.abs().sum().item() > 0
    assert other.weight.device == torch.device("sim", 0)
    assert sim.stats(0).in_use == 2 * (64 + 16)


def test_a_tensor_that_is_set_to_another_has_its_memory():
    one, other = torch.ones(2, device="sim:0"), torch.zeros(3, device="sim:0")
    one.set_(other)
    del other
    assert sim.stats(0).in_use == 12
    one.fill_(2)
    assert one.tolist() == [2.0, 2.0, 2.0]
    del one
    assert sim.stats(0).in_use == 0


def test_autocast_may_be_left_and_entered(grad_mode):
    value = torch.ones(2, 2, device="sim:0")
    with torch.autocast("sim", enabled=False):
        assert (value @ value).dtype == torch.float32


def test_questions_about_a_tensor_are_answered_for_the_simulated_one(grad_mode):
    value = torch.ones(2, 3, device="sim:0").t()
    assert not value.is_contiguous()
    assert value.is_floating_point()
    assert (value.dim(), value.numel(), value.stride()) == (2, 6, (1, 3))
    assert not torch._has_compatible_shallow_copy_type(torch.ones(2), value)


def test_a_tensor_takes_the_type_and_device_of_another(grad_mode):
    result = torch.ones(2).type_as(torch.ones(1, dtype=torch.bfloat16, device="sim:1"))
    assert (result.device, result.dtype) == (torch.device("sim", 1), torch.bfloat16)
    assert torch.ones(2, device="sim:0").to(result).device == torch.device("sim", 1)


def test_threads_share_one_ledger():
    def work() -> None:
        for _ in range(200):
            torch.ones(10, device="sim:0").mul(2).t()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sim.stats(0).in_use == 0


def test_pytorch_finds_the_functions_of_a_device_module():
    kept = torch.ones(100, device="sim:1")
    module = torch.get_device_module("sim:1")
    assert module.is_available()
    assert module.device_count() >= 3
    assert module.memory_allocated("sim:1") == kept.nbytes
    assert module.mem_get_info(1) == (2**30 - kept.nbytes, 2**30)
    assert module.get_device_name(1) == "simulated device 1"
    with torch.random.fork_rng([1], device_type="sim"):
        torch.manual_seed(0)


def test_data_of_inference_mode_is_assigned_as_on_the_host() -> None:
    for device in ("cpu", "sim:0"):
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        with torch.inference_mode():
            weight.data = weight * 1.5
            made = torch.nn.Parameter(torch.ones(3, device=device))
        made.data = weight.detach() * 2
        with torch.no_grad():
            weight.mul_(2)
        assert weight.tolist() == made.tolist() == [3, 3, 3]
        assert weight.requires_grad
