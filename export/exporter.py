"""Checkpoint folder to bundle folder: load, prove the tokenizer, trace, fuse, gate, and only then rename into place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from export.calibration import calibration_texts, sample_texts
from export.conformance import check_tokenizer
from export.graphs import FLAVOURS, Graph, Say, make_graphs
from export.native import export_native
from export.ort_flavour import operators
from export.profiles import Histogram, check_corpus, corpus_lengths
from export.sensitivity import Calibration
from export.signature import outputs
from export.texts import PARITY_TEXTS, adversarial_lines
from export.trace import DEFAULT_IR_VERSION, DEFAULT_OPSET, IR_VERSIONS, OPSETS
from export.verify import check_graph, judged_by
from sentport.bundle import (
    GOLDEN_FILE,
    LAYOUTS,
    PRECISIONS,
    TOKENIZER_FILE,
    Bundle,
    GraphRecord,
    is_bundle,
    sha256_of,
    write_description,
)
from sentport.engines.torch import TorchEngine
from sentport.errors import SentportError
from sentport.files import folder_written_aside
from sentport.gate import LIMITS, limits_of
from sentport.inputs import prompt_text
from sentport.modeling.checkpoint import Checkpoint, load_checkpoint
from sentport.modeling.hub import locate
from sentport.modeling.length_limit import ASKED
from sentport.modeling.simcse import pooling_name
from sentport.suite import Suite, build_suite, load_suite, save_suite
from sentport.tokenizer import Tokenizer

# Weights beyond it go into a file of their own: a protobuf file ends at 2 GiB, and the graph needs some of it.
_ONE_FILE_BYTES = 2_000_000_000
# All pairs of them are compared, 130,816.
_CORPUS_TEXTS = 512


class _Samples(NamedTuple):
    """Texts of the user's: to calibrate on, where those are from, to compare ranks over."""

    calibration: list[str]
    source: str
    corpus: list[str]


@dataclass(frozen=True)
class ExportOptions:
    """What to export and how.

    Attributes:
        layouts: Of ``padded`` and ``packed``.
        precisions: Of ``fp32``, ``fp16``, ``bf16`` and ``int8``.
        flavours: Of ``portable`` and ``ort``; None = both, ``ort`` only where ONNX Runtime fuses something.
        pooling: For plain Hugging Face checkpoints, which do not say.
        normalize: Append L2 normalisation; None = as saved, or on for a plain checkpoint.
        dim: Cut vectors to their first values; None = as saved.
        max_tokens: The length limit; None = as saved.
        revision: Of the hub's repository: branch, tag or full commit; None = its default branch.
        trust_remote_code: Run code that the checkpoint brings along.
        calibration: File of texts, one a line, that int8 is calibrated on; None = texts that ship with the exporter.
        gate_corpus: File of texts, one a line, over which int8 must rank as the source does; None = the parity texts.
            The bundle keeps the first 512 of them, so that a later check can measure the same.
        corpus: File of texts, one a line, whose lengths the bundle keeps to plan batch shapes with; None = none.
        min_cosine: Of precisions under fp32: the worst cosine to the source, where the gate's own limit is lower.
        opset: ONNX operator set.
        ir_version: ONNX file format version.
        force: Replace an existing bundle, once the new one has passed.
    """

    layouts: tuple[str, ...] = ("padded",)
    flavours: tuple[str, ...] | None = None
    precisions: tuple[str, ...] = ("fp32",)
    pooling: str | None = None
    normalize: bool | None = None
    dim: int | None = None
    max_tokens: int | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    calibration: Path | None = None
    gate_corpus: Path | None = None
    corpus: Path | None = None
    min_cosine: float | None = None
    opset: int = DEFAULT_OPSET
    ir_version: int = DEFAULT_IR_VERSION
    force: bool = False

    def __post_init__(self) -> None:
        for kind, asked, known in (
            ("layout", self.layouts, LAYOUTS),
            ("precision", self.precisions, PRECISIONS),
            ("flavour", self.flavours, FLAVOURS),
        ):
            unknown = [name for name in asked or () if name not in known]
            if unknown or asked == ():
                raise SentportError(f"{kind} {', '.join(unknown) or '(none)'} is unknown; known: {', '.join(known)}")
            if asked is not None and len(set(asked)) < len(asked):
                raise SentportError(f"{kind} {', '.join(asked)} names one twice")
        for what, given, needed in (
            ("calibration", self.calibration is not None, ("int8",)),
            ("gate_corpus", self.gate_corpus is not None, ("int8",)),
            ("min_cosine", self.min_cosine is not None, ("fp16", "bf16", "int8")),
        ):
            if given and not {*needed} & {*self.precisions}:
                raise SentportError(f"{what} is for precision {', '.join(needed)}, which --precision does not name")
        self._check_min_cosine()
        if self.opset not in OPSETS:
            raise SentportError(f"opset {self.opset} is not supported; expected {OPSETS[0]} to {OPSETS[-1]}")
        if self.ir_version not in IR_VERSIONS:
            span = f"{IR_VERSIONS[0]} to {IR_VERSIONS[-1]}"
            raise SentportError(f"IR version {self.ir_version} is not supported; expected {span}")

    def _check_min_cosine(self) -> None:
        """Raises SentportError for one that no vector could reach, or every vector has to reach anyway."""
        if self.min_cosine is None:
            return
        if not 0 <= self.min_cosine < 1:
            raise SentportError(f"min_cosine is {self.min_cosine}; expected a number from 0 to under 1")
        own = {name: LIMITS[name].cosine for name in self.precisions if name != "fp32"}
        if self.min_cosine < min(own.values()):
            limits = ", ".join(f"{limit} for {name}" for name, limit in own.items())
            raise SentportError(f"min_cosine {self.min_cosine} would do nothing: the gate asks for {limits} anyway")


def export_bundle(source: str | Path, out: Path, options: ExportOptions, say: Say) -> Bundle:
    """Export a checkpoint; the folder appears only when every graph has passed the gate.

    Args:
        source: Checkpoint folder or hub id.
        out: The bundle folder to make.
        options: What to export.
        say: Told what is being done.

    Raises:
        SentportError: When something cannot be read, done or kept.
        GateError: When a graph's vectors are not the source's.
    """
    _check_out(out, options.force)
    samples = _samples(options)
    say(f"reading {source}")
    checkpoint = load_checkpoint(
        source,
        pooling=options.pooling,
        normalize=options.normalize,
        dim=options.dim,
        max_tokens=options.max_tokens,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        attention="eager",
    )
    for remark in checkpoint.remarks:
        say(f"note: {remark}")
    spec = checkpoint.spec
    say(f"{spec.architecture}, {spec.dim} dimensions, at most {spec.max_tokens} tokens ({spec.max_tokens_source})")
    with folder_written_aside(out) as folder, ThreadPoolExecutor(1) as beside:
        (folder / "graphs").mkdir()
        tokenizer = _write_tokenizer(checkpoint, folder)
        say("computing the source's vectors for the golden suite")
        suite = _suite(checkpoint, tokenizer, options.layouts, samples.corpus)
        save_suite(suite, folder / GOLDEN_FILE)
        say("tracing the graph, and proving the tokenizer on adversarial lines beside it")
        lines = [*PARITY_TEXTS, *adversarial_lines()]
        proof = beside.submit(check_tokenizer, tokenizer, checkpoint.tokenizer, spec.max_tokens, lines)
        bundle = Bundle(folder, spec, (), sha256_of(folder / GOLDEN_FILE), asdict(proof.result()))
        if options.corpus is not None:
            counts = Histogram.of(corpus_lengths(spec, tokenizer, options.corpus))
            bundle = replace(bundle, length_counts=counts.by_size())
        int8 = "int8" in options.precisions
        calibration = _calibration(options, samples, suite, tokenizer, spec.architecture) if int8 else None
        made = make_graphs(
            checkpoint.model,
            options.layouts,
            options.flavours,
            options.opset,
            options.ir_version,
            say,
            options.precisions,
            calibration,
        )
        records = []
        for graph in made:
            record = _write_graph(graph, checkpoint.model.dim, folder)
            say(f"checking {record.file}")
            parity = check_graph(bundle, record, suite, tokenizer, min_cosine=options.min_cosine)
            records.append(replace(record, parity=parity.record(judged_by(record))))
        asked = options.precisions, calibration, suite, tokenizer, options.min_cosine
        native = tuple(export_native(bundle, checkpoint.model, *asked, say))
        bundle = replace(bundle, graphs=tuple(records), native=native)
        write_description(bundle)
    return replace(bundle, path=out)


def suite_from_source(
    bundle: Bundle, source: str | Path, tokenizer: Tokenizer, trust_remote_code: bool = False
) -> Suite:
    """The golden suite computed again from the checkpoint that a bundle claims to come from.

    Raises:
        SentportError: When the checkpoint is another model, or its tokenizer differs from the bundle's.
    """
    spec = bundle.spec
    revision = None if Path(source).is_dir() else spec.revision
    plain = not (locate(source, revision).folder / "modules.json").is_file()
    checkpoint = load_checkpoint(
        source,
        pooling=pooling_name(spec.modules) if plain else None,
        normalize=spec.normalized if plain else spec.normalized or None,
        # A cut behind Normalize is the checkpoint's own, which it makes again by itself.
        dim=None if [module["type"] for module in spec.modules[-2:]] == ["Normalize", "Truncate"] else spec.dim,
        max_tokens=spec.max_tokens if spec.max_tokens_source == ASKED else None,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    if checkpoint.spec.fingerprint != spec.fingerprint:
        raise SentportError(
            f"{source} is not what {bundle.path} was exported from: fingerprints {checkpoint.spec.fingerprint[:12]}… "
            f"and {spec.fingerprint[:12]}… differ"
        )
    check_tokenizer(tokenizer, checkpoint.tokenizer, spec.max_tokens, [*PARITY_TEXTS, *adversarial_lines()])
    return _suite(checkpoint, tokenizer, bundle.layouts, load_suite(bundle.golden_file()).corpus)


def _check_out(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise SentportError(f"{out} exists; add --force to replace it once the new bundle has passed, or name another")
    if not is_bundle(out):
        raise SentportError(f"{out} is not a bundle, so --force does not replace it; name another folder")


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    path.write_text(checkpoint.tokenizer_definition, encoding="utf-8")
    return Tokenizer.from_file(path, checkpoint.spec.max_tokens)


def _suite(checkpoint: Checkpoint, tokenizer: Tokenizer, layouts: tuple[str, ...], corpus: Sequence[str]) -> Suite:
    encoder, spec = checkpoint.model.transformer, checkpoint.spec
    return build_suite(
        TorchEngine(checkpoint.model, device="cpu"),
        tokenizer,
        PARITY_TEXTS,
        vocabulary=encoder.vocabulary,
        token_types=encoder.token_types if encoder.uses_token_types else 1,
        without_types="packed" in layouts,
        prompt=prompt_text(spec.prompts, spec.default_prompt, None),
        pools_prompt=spec.pools_prompt,
        corpus=corpus,
    )


def _samples(options: ExportOptions) -> _Samples:
    """Read first of all: a file that cannot be used is told before anything is computed."""
    texts, source = calibration_texts(options.calibration)
    corpus = options.gate_corpus
    if options.corpus is not None:
        check_corpus(options.corpus)
    return _Samples(
        texts,
        source,
        [] if corpus is None else sample_texts(corpus, "the gate's corpus", _CORPUS_TEXTS),
    )


def _calibration(
    options: ExportOptions, samples: _Samples, suite: Suite, tokenizer: Tokenizer, architecture: str
) -> Calibration:
    """What int8 is made with, the model's default prompt in front of each text."""
    rows = [row for row in tokenizer.encode([suite.prompt + text for text in samples.calibration]).rows if len(row)]
    if not rows:
        raise SentportError(f"of the texts of {samples.source}, which int8 is to be calibrated on, none has a token")
    return Calibration(rows, suite, tokenizer, limits_of("int8", architecture, options.min_cosine), samples.source)


def _write_graph(graph: Graph, dim: int, folder: Path) -> GraphRecord:
    """Write a graph, its weights beside it where one file cannot hold them; the record still lacks its parity."""
    record = GraphRecord(
        file=f"graphs/{graph.layout}-{graph.precision}-{graph.flavour}.onnx",
        layout=graph.layout,
        precision=graph.precision,
        flavour=graph.flavour,
        inputs=graph.inputs,
        outputs=outputs(dim),
        opset=graph.model.opset_imports[""],
        ir_version=graph.model.ir_version,
        sha256="",
        operators=operators(graph.model),
        parity={},
        packed=graph.packed,
        int8=graph.int8,
    )
    file, data = folder / record.file, folder / record.data_file
    tensors = (value.const_value for value in graph.model.graph.initializers.values())
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > _ONE_FILE_BYTES:
        ir.save(graph.model, file, external_data=data.name)
    else:
        file.write_bytes(ir.to_proto(graph.model).SerializeToString(deterministic=True))
    return replace(record, sha256=sha256_of(file), data_sha256=sha256_of(data) if data.is_file() else None)
