"""Everything that is known of a program's placement as plain data, for `--json` and for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.ir.eligibility import marks_by_name
from ..compiler.ir.program import Program, Segment, origin_of, placement_of, tensors_of, weight_name
from ..compiler.ir.split import first_reader, maker_of, original, split_of
from ..compiler.states.parts import held_on, sent
from .outline.grouping import UnitFinder, unit_finder
from .outline.outline import modules_of


def document(program: Program, name: str = "", *, nodes: bool = True) -> dict[str, Any]:
    """Devices, blocks, segments, crossings, schedule and (unless left out) every node, as JSON takes them."""
    find, marks = unit_finder(program.blocks), marks_by_name(program)
    return {
        "component": name or program.name,
        "class": program.name,
        "passes": list(program.history),
        "devices": [_device(device, program) for device in program.devices],
        "blocks": [{"name": block.name, "bytes": program.nbytes_of(block.weights)} for block in program.blocks],
        "segments": [_segment(program, segment, find) for segment in program.segments],
        "crossings": [_crossing(one, *end) for one in program.transfers() for end in sent(program, one)],
        "schedule": [str(instruction) for instruction in program.schedule or ()],
        **({"nodes": [_node(program, node, marks) for node in program.graph.nodes]} if nodes else {}),
    }


def _device(device: Device, program: Program) -> dict[str, Any]:
    homes = [weight.nbytes for weight, devices in held_on(program) if device in devices]
    memory = program.rig[device]
    return {
        "name": device.name,
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "weights": len(homes),
        "weight_bytes": sum(homes),
    }


def _segment(program: Program, segment: Segment, find: UnitFinder) -> dict[str, Any]:
    modules, weights = modules_of(segment.nodes, find)
    return {
        "index": segment.index,
        "device": segment.device.name,
        "runs_on": [device.name for device in segment.group],
        "modules": list(modules),
        "weight_bytes": program.nbytes_of(weights),
        "nodes": [node.name for node in segment.nodes],
    }


def _crossing(transfer: Node, source: Device, target: Device, nbytes: int) -> dict[str, Any]:
    return {
        "value": original(transfer).name,
        "bytes": nbytes,
        "source": source.name,
        "target": target.name,
        "producer": placement_of(maker_of(transfer)).segment,
        "consumer": placement_of(first_reader(transfer)).segment,
    }


def _node(program: Program, node: Node, marks: Mapping[str, str]) -> dict[str, Any]:
    placement, origin, weight = placement_of(node), origin_of(node), weight_name(node)
    device = program.home.get(weight) if weight else placement.device
    return {
        "name": node.name,
        "op": str(node.target) if node.op == "call_function" else node.op,
        "inputs": [source.name for source in node.all_input_nodes],
        "shapes": [list(tensor.shape) for tensor in tensors_of(node)] if node.op != "output" else [],
        "dtypes": [str(t.dtype).removeprefix("torch.") for t in tensors_of(node)] if node.op != "output" else [],
        "device": device.name if device else None,
        "split": [list(columns) for columns in split.segments[0]] if (split := split_of(node)) else [],
        "segment": placement.segment,
        "weight": weight,
        "eligible": marks[weight] == "" if weight else None,
        "why_not": marks[weight] if weight else "",
        "module": origin.module,
        "source": origin.source,
    }
