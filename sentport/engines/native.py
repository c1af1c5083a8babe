"""Engine ``native``: an encoder of BERT's shape on the CPU, by the kernels of the distribution ``sentport-native``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import Bundle, GraphRecord
from sentport.engines.feeds import refuse_unknown
from sentport.engines.native_file import NativeFile, read_native
from sentport.errors import EngineError, GraphError, InputError, PrecisionError
from sentport.hardware import available_cores

try:
    import sentport_native
except ImportError as error:
    way_out = "pip install 'sentport[native]', or `make native` in the repository"
    reason = f"engine native is installed and cannot be imported ({error})"
    if isinstance(error, ModuleNotFoundError) and error.name == "sentport_native":
        raise EngineError(f"engine native is not installed: {way_out}") from error
    raise EngineError(f"{reason}: build it again ({way_out}), or use engine onnxruntime") from error

# Tokens of one block: enough rows for the products, few enough that a block's values stay near to their core.
TOKEN_BUDGET = 192
# The levels whose instructions multiply bf16; elsewhere there is a twin that rounds alike, for the gate alone.
_BF16_LEVELS = frozenset({"avx512-bf16"})


class NativeEngine:
    """Runs one native file of a bundle; see ``Engine`` for the contract.

    Args:
        bundle: Where the file comes from.
        graph: Its record.
        threads: Compute threads in all, or None for the cores that this process may use.
        device: ``cpu`` or ``auto``.
        level: The kernels to use, one of ``sentport_native.levels()`` or ``plain``; None = the best that this CPU runs.
        twin: Let bf16 be computed by fp32 instructions that round alike, which is no faster than fp32.

    Attributes:
        level: The level of the kernels.

    Raises:
        PrecisionError: When this CPU does not run the precision.
        GraphError: When the file is damaged, or of a form that the kernels do not take.
        EngineError: For another device, or a CPU without AVX2.
    """

    name = "native"
    layout = "packed"

    def __init__(
        self,
        bundle: Bundle,
        graph: GraphRecord,
        threads: int | None = None,
        device: str = "auto",
        *,
        level: str | None = None,
        twin: bool = False,
    ) -> None:
        self.device = resolve_device(device)
        self.precision, self.level = graph.precision, level or best_level()
        if not twin and not runs(graph.precision, self.level):
            raise PrecisionError(
                f"{graph.file} is bf16, which needs a CPU with AVX512-BF16; this one offers {self.level}: "
                "use precision fp32"
            )
        file = bundle.graph_file(graph)
        try:
            self._model: sentport_native.Model | None = make_model(read_native(file), self.level)
        except (ValueError, TypeError, KeyError) as error:
            why = f"{file} does not fit engine native ({_one_line(error)})"
            raise GraphError(f"{why}; export the checkpoint again") from error
        if self._model.dim != bundle.spec.dim:
            raise GraphError(f"{file} gives vectors of {self._model.dim}, bundle.json says {bundle.spec.dim}")
        self.token_budget = TOKEN_BUDGET
        self.sessions, self.threads = threads or available_cores(), 1
        self._inputs = {tensor.name for tensor in graph.inputs}

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32; no pad is computed, and a text's vector is the same bits in any company."""
        model = self._model  # another thread may close the engine meanwhile
        if model is None:
            raise EngineError("this engine is closed; open a new Encoder")
        refuse_unknown(self.name, self._inputs, batch)
        try:
            return run_model(model, batch, 1 if beside else self.sessions)
        except ValueError as error:
            raise InputError(f"{error}") from error

    def close(self) -> None:
        """Let go of the model."""
        self._model = None


def _one_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"its description lacks {error}"
    if isinstance(error, TypeError):  # whose own text is the signature
        return "a value of its description is of another type than expected"
    return " ".join(str(error).split())


def resolve_device(device: str) -> str:
    """The device that is meant.

    Raises:
        EngineError: For a device that the engine does not know.
    """
    if device not in ("auto", "cpu"):
        raise EngineError(f"device {device!r} is unknown to engine native; it knows auto, cpu")
    return "cpu"


def best_level() -> str:
    """The best kernels that this CPU runs.

    Raises:
        EngineError: When it runs none.
    """
    levels: list[str] = sentport_native.levels()
    if not levels:
        raise EngineError("engine native needs a CPU with AVX2 and FMA; use engine onnxruntime")
    return levels[-1]


def runs(precision: str, level: str | None = None) -> bool:
    """Whether a level, the best one by default, has instructions for a precision."""
    levels = sentport_native.levels() if level is None else [level]
    return bool(levels) and (precision != "bf16" or levels[-1] in _BF16_LEVELS)


def make_model(content: NativeFile, level: str) -> sentport_native.Model:
    """The model of a file, its weights packed for a level.

    Raises:
        ValueError: When arrays and description do not fit each other.
        KeyError: When the description lacks something.
    """
    description = content.description
    return sentport_native.Model(
        level=level,
        tensors=content.arrays,
        layers=description["layers"],
        heads=description["heads"],
        activation=description["activation"],
        epsilon=description["epsilon"],
        pad_id=description["pad_id"],
        pooling=description["pooling"],
        modules=[(kind, detail) for kind, detail in description["modules"]],
    )


def run_model(model: sentport_native.Model, batch: TokenBatch, threads: int) -> NDArray[np.float32]:
    """Vectors ``[rows, dim]`` of a batch, by so many threads at most.

    Raises:
        ValueError: For an id, type or length that the model does not have.
    """
    ids, lengths = batch.ids, batch.lengths
    types, pooled = batch.token_type_ids, batch.pooling_mask
    if batch.attention_mask is not None:  # pads stand behind their row's tokens: without them rows are only shorter
        kept = batch.attention_mask != 0  # [T]
        row_of = np.repeat(np.arange(len(lengths)), lengths)  # [T]
        ids, lengths = ids[kept], np.bincount(row_of[kept], minlength=len(lengths)).astype(np.int32)
        types, pooled = _only(types, kept), _only(pooled, kept)
    tables = (ids, lengths, types, pooled)
    arrays: list[Any] = [None if table is None else np.ascontiguousarray(table) for table in tables]
    vectors: NDArray[np.float32] = model.run(*arrays, threads=threads, block_tokens=TOKEN_BUDGET)
    return vectors


def _only(values: NDArray[np.int64] | None, kept: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    return None if values is None else values[kept]
