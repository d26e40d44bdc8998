"""`dovetail convert`: weights in another type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...compiler.units import format_bytes
from ..options.shared import Debug, Json
from ..output.progress import progress
from ..output.results import check_writable, print_json, print_table

if TYPE_CHECKING:
    from ...convert import Conversion

Source = Annotated[
    Path,
    typer.Argument(metavar="IN", help="A safetensors or GGUF file, the index of several, or a component's folder."),
]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="OUT", help="A .gguf or .safetensors file; replaced when all is done.")
]
Type = Annotated[str, typer.Option("--type", metavar="TYPE", help="q8_0, q6_k, q4_k, iq4_xs, bf16, f16, f32, …")]
Rules = Annotated[
    list[str] | None,
    typer.Option("--tensor-type", metavar="PATTERN=TYPE", help="Another type for weights of such names; repeatable."),
]
ListedRules = Annotated[
    str, typer.Option("--tensor-type-rules", metavar="RULES", hidden=True, help="Several --tensor-type, by commas.")
]
Architecture = Annotated[
    str, typer.Option("--arch", metavar="NAME", help="What a GGUF file says it is: flux, sd3, … Else the class.")
]


def convert(
    source: Source,
    output: Output,
    type: Type,
    tensor_type: Rules = None,
    tensor_type_rules: ListedRules = "",
    arch: Architecture = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Convert weights to another type, one weight in memory at a time.

    Large matrices get the type; vectors and convolutions are not packed, and what stands outside the blocks gets at
    least 8 bits. An existing OUT is replaced, but only by a whole file.
    """
    check_writable(output)
    from ...convert import plan_conversion

    rules = [*filter(None, tensor_type_rules.split(",")), *(tensor_type or ())]
    conversion = plan_conversion(source, output, type, rules, arch)
    with progress(f"converting to {output.name}", total=len(conversion.weights)) as advance:
        conversion.run(advance)
    if json:
        print_json(_facts(conversion))
        return
    print(f"{output}: {format_bytes(conversion.before)} → {format_bytes(conversion.after)}")
    rows = [
        (quant, str(len(weights)), format_bytes(sum(weight.nbytes for weight in weights)), why or "as asked")
        for (quant, why), weights in conversion.groups().items()
    ]
    print_table(("type", "weights", "size", "why"), rows, right=(1, 2))


def _facts(conversion: Conversion) -> dict[str, object]:
    groups = [
        {"type": quant, "why": why, "weights": len(weights), "bytes": sum(weight.nbytes for weight in weights)}
        for (quant, why), weights in conversion.groups().items()
    ]
    return {
        "file": str(conversion.target),
        "bytes_before": conversion.before,
        "bytes_after": conversion.after,
        "types": groups,
    }
