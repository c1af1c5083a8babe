"""The bundle folder: what export writes and everything downstream reads (docs/architecture.md)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sentport import __version__
from sentport.errors import BundleError

# 1.1: a graph's external data, the source's revision, chains that pool without the prompt. 1.2: packed graphs. 1.3:
# precisions. 1.4: the lengths of a corpus, native files. A newer minor than ours is refused, since it may hold what
# this version would drop; what an older one lacks has its default.
FORMAT = (1, 4)
DESCRIPTION_FILE = "bundle.json"
TOKENIZER_FILE = "tokenizer.json"
GOLDEN_FILE = "golden.npz"
LAYOUTS = ("padded", "packed")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
PACKINGS = ("rewritten", "unpacked")
# What the record of a graph in int8 holds, and the figures of any.
_INT8 = {"form": str, "layers": list, "sha256": str, "kept": list, "trade": list, "calibration": str}
_FIGURES = frozenset({"relative_l2", "max_abs", "cosine", "mean_cosine", "rank", "company", "company_cosine"})
# In which order layout ``auto`` takes graphs on a device, by how they are packed; None is layout ``padded``. Packed
# goes first only where it was measured to be faster (docs/architecture.md, Engines).
_AUTO_LAYOUT = {"cpu": ("rewritten", None, "unpacked"), "cuda": (None, "rewritten", "unpacked")}


@dataclass(frozen=True)
class TensorRecord:
    """One graph input or output: its name, element type, and axes (a name, or the static ``dim``)."""

    name: str
    dtype: str
    axes: tuple[str | int, ...]


@dataclass(frozen=True)
class GraphRecord:
    """One graph of a bundle and the proof that came with it.

    Attributes:
        file: Its path inside the bundle.
        layout: ``padded`` or ``packed``.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        flavour: ``portable`` or ``ort``; ``native`` for a file of engine ``native``, which is no graph: it has neither
            operators nor opset (0), and its inputs are what a batch may hold.
        inputs: Its inputs in order.
        outputs: Its one output.
        opset: ONNX operator set.
        ir_version: ONNX file format version.
        sha256: Hash of the file.
        operators: How often it holds each operator.
        parity: The gate's figures.
        data_sha256: Hash of its weights' own file, ``data_file``; None when they lie in the graph (under 2 GB).
        packed: Of layout ``packed`` alone: ``rewritten`` computes on tokens, and only attention on rectangles;
            ``unpacked`` makes a padded batch inside the graph, so that it is right and no faster than ``padded``.
        int8: Of precision int8 alone: its form, the layers in int8, those kept in fp32, and what was measured.
    """

    file: str
    layout: str
    precision: str
    flavour: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    opset: int
    ir_version: int
    sha256: str
    operators: Mapping[str, int]
    parity: Mapping[str, Any]
    data_sha256: str | None = None
    packed: str | None = None
    int8: Mapping[str, Any] | None = None

    @property
    def data_file(self) -> str:
        """Path, inside the bundle, of the weights that the graph keeps outside of itself."""
        return f"{self.file}.data"


@dataclass(frozen=True)
class ModelSpec:
    """What a text encoder is, whatever runs it.

    Attributes:
        source: Name of the checkpoint.
        weights_sha256: Hash over the weights that take part, by tensor name.
        tokenizer_sha256: Hash of ``tokenizer.json``.
        architecture: Model type as in the checkpoint's ``config.json``.
        modules: The module chain as exported, in order.
        dim: Width of a vector.
        similarity: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``.
        max_tokens: Length limit, special tokens included.
        max_tokens_source: Which setting decided it.
        prompts: Saved prompts by name.
        default_prompt: Name of the prompt used when none is named, or None.
        revision: Commit of the hub's repository that the checkpoint is from, where known.
    """

    source: str
    weights_sha256: str
    tokenizer_sha256: str
    architecture: str
    modules: tuple[Mapping[str, Any], ...]
    dim: int
    similarity: str
    max_tokens: int
    max_tokens_source: str
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    revision: str | None = None

    @property
    def normalized(self) -> bool:
        """Whether the chain ends in L2 normalisation."""
        return bool(self.modules) and self.modules[-1]["type"] == "Normalize"

    @property
    def pools_prompt(self) -> bool:
        """Whether a prompt's tokens take part in pooling (``include_prompt``)."""
        return all(module.get("include_prompt", True) for module in self.modules)

    @property
    def chain(self) -> list[str]:
        """The modules in words, in order."""
        return [_module_words(dict(module)) for module in self.modules]

    @property
    def space(self) -> dict[str, Any]:
        """All that decides which space the vectors lie in."""
        return {
            "weights": self.weights_sha256,
            "modules": list(self.modules),
            "dim": self.dim,
            "normalized": self.normalized,
            "tokenizer": self.tokenizer_sha256,
            "max_tokens": self.max_tokens,
            "prompts": dict(self.prompts),
            "default_prompt": self.default_prompt,
        }

    @property
    def fingerprint(self) -> str:
        """Identity of the embedding space: vectors of equal fingerprints may be compared with each other."""
        text = json.dumps(self.space, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _module_words(module: dict[str, Any]) -> str:
    kind = str(module.pop("type"))
    details = ", ".join(f"{key} {_value_words(value)}" for key, value in module.items())
    return f"{kind} ({details})" if details else kind


def _value_words(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose description has been read and checked.

    Attributes:
        path: The folder.
        spec: What the encoder is.
        graphs: Its graphs.
        golden_sha256: Hash of the golden suite.
        tokenizer_proof: Lines and limits on which the ids were proven equal to the source tokenizer's.
        sentport: Version that wrote it.
        length_counts: How many texts of the corpus that export was given have so many tokens; empty without one.
        native: Its files for engine ``native``, one a precision, with the record that a packed graph has.
    """

    path: Path
    spec: ModelSpec
    graphs: tuple[GraphRecord, ...]
    golden_sha256: str
    tokenizer_proof: Mapping[str, Any]
    sentport: str = __version__
    length_counts: Mapping[str, int] = field(default_factory=dict)
    native: tuple[GraphRecord, ...] = ()

    def file(self, name: str, sha256: str) -> Path:
        """Path of one of the bundle's files, after its hash was checked.

        Raises:
            BundleError: When the file is missing or has changed.
        """
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise BundleError(f"bundle.json names {name!r}, which lies outside of {self.path}; do not use this bundle")
        if not path.is_file():
            raise BundleError(f"{path} is missing from the bundle; export the checkpoint again")
        found = sha256_of(path)
        if found != sha256:
            raise BundleError(
                f"{path} has changed: its SHA-256 is {found[:12]}…, bundle.json says {sha256[:12]}…; "
                "export the checkpoint again"
            )
        return path

    def graph_file(self, graph: GraphRecord) -> Path:
        """Path of a graph, checked, and its external data with it."""
        if graph.data_sha256 is not None:
            self.file(graph.data_file, graph.data_sha256)
        return self.file(graph.file, graph.sha256)

    def tokenizer_file(self) -> Path:
        """Path of ``tokenizer.json``, checked."""
        return self.file(TOKENIZER_FILE, self.spec.tokenizer_sha256)

    def golden_file(self) -> Path:
        """Path of ``golden.npz``, checked."""
        return self.file(GOLDEN_FILE, self.golden_sha256)

    def golden_texts(self) -> list[str]:
        """The parity texts, without the default prompt that the suite puts in front of them.

        Raises:
            BundleError: When ``golden.npz`` is missing or has changed.
        """
        import numpy as np

        with np.load(self.golden_file(), allow_pickle=False) as arrays:
            texts: list[str] = json.loads(arrays["texts"].tobytes())
        return [text.removeprefix(self.spec.prompts.get(self.spec.default_prompt or "", "")) for text in texts]

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of its graphs."""
        return tuple(layout for layout in LAYOUTS if any(graph.layout == layout for graph in self.graphs))

    def precision_of(self, asked: str) -> str:
        """The precision that is meant: of ``auto`` fp32 where the bundle has it, else its only one.

        A lower precision is never chosen unasked, so this is asked of the whole bundle even where an engine runs only
        some of its graphs.

        Raises:
            BundleError: When ``auto`` would have to guess.
        """
        held = {graph.precision for graph in self.graphs}
        if asked != "auto":
            return asked
        if "fp32" not in held and len(held) > 1:
            raise BundleError(f"{self.path} holds {self._held()}; name a precision")
        return "fp32" if "fp32" in held else next(iter(held))

    def _held(self) -> str:
        return ", ".join(sorted({f"{graph.layout} {graph.precision}" for graph in self.graphs}))

    def select(
        self, layout: str, precision: str, device: str = "cpu", flavours: tuple[str, ...] = ("ort", "portable")
    ) -> GraphRecord:
        """The graph to run on device ``cpu`` or a GPU, by an engine that takes these flavours, the best first.

        Precision ``auto`` is ``precision_of``'s; layout ``auto`` the faster one by measure (docs/architecture.md,
        Engines).

        Raises:
            BundleError: Listing what the bundle has when nothing fits, or when ``auto`` would have to guess.
        """
        if layout not in ("auto", *LAYOUTS):
            raise BundleError(f"layout {layout!r} is unknown; known: auto, {', '.join(LAYOUTS)}")
        if precision not in ("auto", *PRECISIONS):
            raise BundleError(f"precision {precision!r} is unknown; known: auto, {', '.join(PRECISIONS)}")
        if layout not in ("auto", *self.layouts):
            way_out = f"sentport export SOURCE --out BUNDLE --layout {','.join(LAYOUTS)}"
            raise BundleError(f"{self.path} has no graph of layout {layout}; `{way_out}` makes one")
        precision = self.precision_of(precision)
        fitting = [graph for graph in self.graphs if graph.precision == precision and layout in ("auto", graph.layout)]
        if not fitting:
            raise BundleError(
                f"{self.path} has no graph with layout {layout} in {precision} for this engine; it holds {self._held()}"
            )
        runnable = [graph for graph in fitting if graph.flavour in flavours]
        if not runnable:
            way_out = f"sentport export SOURCE --out BUNDLE --flavour {','.join(flavours)}"
            raise BundleError(f"{self.path} has no {precision} graph that this engine runs; `{way_out}` makes one")
        order = _AUTO_LAYOUT["cpu" if device == "cpu" else "cuda"]
        if precision == "int8" and device != "cpu":  # flavour ort's int8 products run on a CPU alone
            flavours = tuple(sorted(flavours, key="ort".__eq__))
        return min(runnable, key=lambda graph: (order.index(graph.packed), flavours.index(graph.flavour)))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_description(bundle: Bundle) -> None:
    """Write ``bundle.json``; the last file of an export, so that a folder without it is half-written."""
    description = {
        "format": ".".join(map(str, FORMAT)),
        "sentport": bundle.sentport,
        **asdict(bundle.spec),
        "graphs": [asdict(graph) for graph in bundle.graphs],
        "native": [asdict(graph) for graph in bundle.native],
        "golden_sha256": bundle.golden_sha256,
        "tokenizer_proof": bundle.tokenizer_proof,
        "length_counts": dict(bundle.length_counts),
        "fingerprint": bundle.spec.fingerprint,
    }
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (bundle.path / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")


def is_bundle(path: Path) -> bool:
    """Whether a folder is a finished bundle."""
    return (path / DESCRIPTION_FILE).is_file()


def read_bundle(path: str | Path, expect: str | None = None) -> Bundle:
    """Read a bundle's description; files are checked by hash when they are taken.

    Args:
        path: The bundle folder.
        expect: SHA-256 of ``bundle.json`` (which holds all other hashes), to prove where it comes from.

    Raises:
        BundleError: When the folder is not a finished bundle, was written by an incompatible version, or changed.
    """
    folder = Path(path)
    description = folder / DESCRIPTION_FILE
    if not description.is_file():
        raise BundleError(f"{folder} {_what_it_is(folder)}; make a bundle with `sentport export SOURCE --out BUNDLE`")
    if expect is not None and sha256_of(description) != expect.lower():
        raise BundleError(f"{description} has SHA-256 {sha256_of(description)}, expected {expect}")
    try:
        values = json.loads(description.read_text(encoding="utf-8"))
        _check_format(folder, str(values["format"]))
        bundle = _parse(folder, values)
        edited = bundle.spec.fingerprint != values["fingerprint"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(
            f"{description} is damaged ({type(error).__name__}: {error}); export the checkpoint again"
        ) from None
    if edited:
        raise BundleError(f"{description} has been edited: its fingerprint does not match; export the checkpoint again")
    return bundle


def _what_it_is(folder: Path) -> str:
    if not folder.exists():
        return "does not exist"
    if not folder.is_dir():
        return "is not a folder"
    if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
        return "is a checkpoint, not a bundle"
    return f"is half-written or not a bundle (no {DESCRIPTION_FILE})"


def _check_format(folder: Path, found: str) -> None:
    major, _, minor = found.partition(".")
    version = (int(major), int(minor))
    known = ".".join(map(str, FORMAT))
    if version[0] < FORMAT[0]:
        raise BundleError(
            f"{folder} has bundle format {found}, this sentport reads {known}; make it again with `sentport export`"
        )
    if version > FORMAT:
        raise BundleError(f"{folder} has bundle format {found}, this sentport reads up to {known}; upgrade sentport")


def _parse(folder: Path, values: Mapping[str, Any]) -> Bundle:
    spec = ModelSpec(**{name: _frozen(value) for name, value in _held(ModelSpec, values).items()})
    graphs = tuple(_parse_graph(graph) for graph in values["graphs"])
    native = tuple(_parse_graph(graph) for graph in values.get("native", ()))
    _check_values(spec, graphs)
    _check_values(spec, native or graphs)
    counts = values.get("length_counts", {})
    if any(not tokens.isdecimal() or type(count) is not int or count < 1 for tokens, count in counts.items()):
        raise ValueError("length_counts does not hold numbers of texts by tokens")
    proof, version = values["tokenizer_proof"], values["sentport"]
    return Bundle(folder, spec, graphs, values["golden_sha256"], proof, version, counts, native)


def _check_values(spec: ModelSpec, graphs: tuple[GraphRecord, ...]) -> None:
    """Raises ValueError for a value that nothing downstream could use."""
    for name in ("dim", "max_tokens"):
        value = getattr(spec, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} is {value!r}")
    if not graphs:
        raise ValueError("there is no graph")
    for graph in graphs:
        if graph.layout not in LAYOUTS:
            raise ValueError(f"layout {graph.layout!r} is unknown")
        if graph.packed not in (PACKINGS if graph.layout == "packed" else (None,)):
            raise ValueError(f"packed is {graph.packed!r} for a graph of layout {graph.layout}")
        if [tensor.axes for tensor in graph.outputs] != [("batch", spec.dim)]:
            raise ValueError(f"{graph.file} does not give vectors of {spec.dim}")
        _check_precision(graph)


def _check_precision(graph: GraphRecord) -> None:
    """Raises ValueError for a precision that nothing knows, or what is said of it that nothing could have measured."""
    if graph.precision not in PRECISIONS:
        raise ValueError(f"precision {graph.precision!r} is unknown")
    if (graph.int8 is None) == (graph.precision == "int8"):
        verb = "lacks" if graph.int8 is None else "has"
        raise ValueError(f"{graph.file} is {graph.precision} and {verb} a record of int8 layers")
    if graph.int8 is not None:
        _check_int8(graph.file, graph.int8)
    for name in _FIGURES & graph.parity.keys():
        figure = graph.parity[name]
        if type(figure) not in (int, float) or not math.isfinite(figure):
            raise ValueError(f"{name} of {graph.file} is {figure!r}")


def _check_int8(file: str, int8: Mapping[str, Any]) -> None:
    for name, kind in _INT8.items():
        if not isinstance(int8.get(name), kind):
            raise ValueError(f"{name} of {file}'s int8 layers is {int8.get(name)!r}")
    names = [*int8["layers"], *int8["kept"]]
    steps = [step[figure] for step in int8["trade"] for figure in ("cosine", "mean_cosine")]
    if {type(name) for name in names} - {str} or {type(figure) for figure in steps} - {int, float}:
        raise ValueError(f"{file}'s int8 layers have names that are no text, or figures that are no numbers")
    if int8["kept"] and not steps:
        raise ValueError(f"layers of {file} are kept in fp32, and what that gained is not said")


def _parse_graph(values: Mapping[str, Any]) -> GraphRecord:
    held = _held(GraphRecord, values)
    for side in ("inputs", "outputs"):
        held[side] = tuple(TensorRecord(t["name"], t["dtype"], tuple(t["axes"])) for t in values[side])
    return GraphRecord(**held)


def _held(record: type[ModelSpec | GraphRecord], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record's fields; one with a default may be absent, as it is from an older minor format.

    Raises:
        KeyError: When another one is.
    """
    needed = {field.name for field in fields(record) if field.default is field.default_factory is MISSING}
    names = [field.name for field in fields(record) if field.name in needed or field.name in values]
    return {name: values[name] for name in names}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
