"""What becomes of each weight of a checkpoint, planned from its header alone; and then done, a few rows at a time.

Each weight is read, converted and written before the next, so no more than one is in memory. The file takes its name
when it is whole.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..compiler.atomic_write import written_beside
from ..compiler.checkpoints.index import WeightIndex
from ..compiler.errors import DovetailError, UsageError
from ..compiler.units import format_bytes
from .files import ARCHITECTURE, ORIGINAL_SHAPE, WRITERS
from .source import architecture_of, open_source
from .types import PLAIN, Converted, Rule, choose, parse_type
from .worker import worker

logger = logging.getLogger(__name__)

_NOT_CARRIED = ("general.alignment", "general.file_type", "general.quantization_version", "split.")


@dataclass(frozen=True)
class Conversion:
    """What becomes of each weight of a checkpoint."""

    target: Path
    weights: tuple[Converted, ...]
    metadata: Mapping[str, Any]
    private: bool = False
    """Whether nobody else may read or write the file."""

    @property
    def before(self) -> int:
        """Bytes of the weights as they lie now."""
        return sum(weight.entry.nbytes for weight in self.weights)

    @property
    def after(self) -> int:
        """Bytes of the weights in the new file."""
        return sum(weight.nbytes for weight in self.weights)

    def groups(self) -> dict[tuple[str, str], list[Converted]]:
        """The weights by type and reason, the largest group first."""
        found: dict[tuple[str, str], list[Converted]] = {}
        for weight in self.weights:
            found.setdefault((weight.type_name, weight.why), []).append(weight)
        return dict(sorted(found.items(), key=lambda item: -sum(weight.nbytes for weight in item[1])))

    def run(self, advance: Callable[[], object] = lambda: None) -> None:
        """Writes the file, and calls `advance` after each weight. Whatever goes wrong, no part of a file stays behind.

        Raises:
            WeightError: a weight cannot be read, or has numbers that its new type cannot hold.
            DovetailError: the file cannot be written.
        """
        _check_room(self.target, self.after)
        try:
            with written_beside(self.target) as draft:
                if self.private:
                    draft.chmod(0o600)
                self.write_to(draft, advance)
        except OSError as error:
            free = format_bytes(_free(self.target))
            why = f"{error.strerror or error}, with {free} free there"
            raise DovetailError(f"cannot write {self.target}: {why}: nothing of it was kept") from error

    def write_to(self, path: Path, advance: Callable[[], object] = lambda: None) -> None:
        """Writes what the file holds to a path that is there. Raises WeightError as `run` does, and OSError."""
        writer = WRITERS[self.target.suffix.lower()]
        with writer(path, self.weights, self.metadata) as put, worker() as work:
            for weight in self.weights:
                put(work.convert(weight))
                advance()


def plan_conversion(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    quant: str,
    rules: Sequence[str] = (),
    architecture: str = "",
) -> Conversion:
    """Plans a new file for the weights of a checkpoint; nothing but headers is read.

    Args:
        source: a safetensors or GGUF file, the index of several, or the folder of a component.
        target: a `.gguf` or `.safetensors` file.
        quant: the type of large matrices, one of ``QUANT_TYPES`` in any case; in a safetensors file F32, F16 or BF16,
            and of all weights.
        rules: `PATTERN=TYPE`, for weights whose name the pattern is found in; a later one overrides an earlier one.
        architecture: what a GGUF file says it is; what the source says, if left out.

    Raises:
        UsageError: something of this is not so.
        WeightError: a file is missing or damaged.
    """
    path, wanted, parsed = Path(target), parse_type(quant), [Rule.parse(rule) for rule in rules]
    _check_target(path, [wanted, *(rule.quant for rule in parsed)])
    index = open_source(Path(source))
    _check_not_source(path, index)
    _check_rules(parsed, index)
    packs = path.suffix.lower() == ".gguf"
    weights = [_noted(choose(name, entry, wanted, parsed, packs), index) for name, entry in index.items()]
    _tell_of_packing_twice(weights)
    if not packs:
        weights.sort(key=lambda weight: -weight.dtype.itemsize)  # so that all are aligned
    metadata = _metadata(index, architecture, wanted, Path(source)) if packs else {}
    return Conversion(path, tuple(weights), metadata)


def _noted(weight: Converted, index: WeightIndex) -> Converted:
    shape = index.metadata.get(ORIGINAL_SHAPE + weight.name)
    is_shape = isinstance(shape, tuple) and math.prod(shape) == math.prod(weight.entry.shape)
    return replace(weight, noted=shape) if is_shape else weight


def _tell_of_packing_twice(weights: Sequence[Converted]) -> None:
    again = [weight for weight in weights if weight.entry.is_packed and weight.quant not in PLAIN]
    again = [weight for weight in again if not weight.is_same]
    if again:
        logger.warning(
            "%d weights are packed already, %s as %s: what that lost stays lost, so start from the original if you can",
            *(len(again), again[0].name, again[0].entry.quant),
        )


def _metadata(index: WeightIndex, architecture: str, quant: str, source: Path) -> dict[str, Any]:
    from gguf import GGML_QUANT_VERSION, LlamaFileType

    is_gguf = ARCHITECTURE in index.metadata
    carried = {key: value for key, value in index.metadata.items() if is_gguf and not key.startswith(_NOT_CARRIED)}
    kinds = {kind.name.partition("_")[2]: int(kind) for kind in LlamaFileType}
    return {
        **carried,
        ARCHITECTURE: architecture or carried.get(ARCHITECTURE) or architecture_of(source),
        "general.quantization_version": GGML_QUANT_VERSION,
        "general.file_type": kinds[quant if quant in kinds else f"{quant}_S"],
    }


def _check_target(path: Path, types: Sequence[str]) -> None:
    if path.suffix.lower() not in WRITERS:
        raise UsageError(f"cannot write weights to {path}: name a file such as out.gguf or out.safetensors")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    packed = [quant for quant in types if quant not in PLAIN]
    if packed and path.suffix.lower() != ".gguf":
        raise UsageError(f"{path} cannot hold {packed[0]}: ask for f32, f16 or bf16, or name a .gguf file")


def _check_not_source(path: Path, index: WeightIndex) -> None:
    files = {index.where, *(piece.file.path for entry in index.values() for piece in entry.pieces)}
    if path.exists() and any(file.exists() and path.samefile(file) for file in files):
        raise UsageError(f"{path} is what is to be converted: name another file to write to")


def _check_rules(rules: Sequence[Rule], index: WeightIndex) -> None:
    for rule in rules:
        if not any(rule.pattern.search(name) for name in index):
            names = ", ".join(list(index)[:3])
            raise UsageError(
                f"--tensor-type {rule.pattern.pattern}={rule.quant} is for no weight: they are called {names}, …"
            )


def _check_room(target: Path, nbytes: int) -> None:
    if nbytes > _free(target):
        raise DovetailError(
            f"{target} needs {format_bytes(nbytes)}, and its disk has {format_bytes(_free(target))} free: make room "
            "there, or write to another disk"
        )


def _free(target: Path) -> int:
    return shutil.disk_usage(target.absolute().parent).free
