"""Checkpoint folder to bundle folder: load, prove the tokenizer, trace, fuse, gate, and only then rename into place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx_ir as ir

from export.conformance import check_tokenizer
from export.ort_flavour import fuse, operators
from export.passes import finish
from export.signature import outputs, padded_inputs
from export.suite import Suite, build_suite, save_suite
from export.texts import PARITY_TEXTS, adversarial_lines
from export.trace import DEFAULT_IR_VERSION, DEFAULT_OPSET, IR_VERSIONS, OPSETS, trace_padded
from export.verify import check_graph
from sentport.bundle import (
    GOLDEN_FILE,
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
from sentport.modeling.checkpoint import Checkpoint, load_checkpoint
from sentport.tokenizer import Tokenizer

FLAVOURS = ("portable", "ort")
_PROTOBUF_LIMIT_BYTES = 2_000_000_000

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExportOptions:
    """What to export and how.

    Attributes:
        flavours: Of ``portable`` and ``ort``.
        pooling: For plain Hugging Face checkpoints, which do not say.
        normalize: Append L2 normalisation; None = as saved, or on for a plain checkpoint.
        opset: ONNX operator set.
        ir_version: ONNX file format version.
        force: Replace an existing bundle, once the new one has passed.
    """

    flavours: tuple[str, ...] = FLAVOURS
    pooling: str | None = None
    normalize: bool | None = None
    opset: int = DEFAULT_OPSET
    ir_version: int = DEFAULT_IR_VERSION
    force: bool = False

    def __post_init__(self) -> None:
        unknown = [flavour for flavour in self.flavours if flavour not in FLAVOURS]
        if unknown or not self.flavours:
            raise SentportError(f"flavour {', '.join(unknown) or '(none)'} is unknown; known: {', '.join(FLAVOURS)}")
        if self.opset not in OPSETS:
            raise SentportError(f"opset {self.opset} is not supported; expected {OPSETS[0]} to {OPSETS[-1]}")
        if self.ir_version not in IR_VERSIONS:
            known = f"{IR_VERSIONS[0]} to {IR_VERSIONS[-1]}"
            raise SentportError(f"IR version {self.ir_version} is not supported; expected {known}")


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
    say(f"reading {source}")
    checkpoint = load_checkpoint(source, pooling=options.pooling, normalize=options.normalize, attention="eager")
    for remark in checkpoint.remarks:
        say(f"note: {remark}")
    spec = checkpoint.spec
    say(f"{spec.architecture}, {spec.dim} dimensions, at most {spec.max_tokens} tokens ({spec.max_tokens_source})")
    with folder_written_aside(out) as folder, ThreadPoolExecutor(1) as beside:
        (folder / "graphs").mkdir()
        tokenizer = _write_tokenizer(checkpoint, folder)
        say("computing the source's vectors for the golden suite")
        suite = _suite(checkpoint, tokenizer)
        save_suite(suite, folder / GOLDEN_FILE)
        say("tracing the graph (the longest step), and proving the tokenizer on adversarial lines beside it")
        lines = [*PARITY_TEXTS, *adversarial_lines()]
        proof = beside.submit(check_tokenizer, tokenizer, checkpoint.tokenizer, spec.max_tokens, lines)
        portable = _trace(checkpoint, options)
        bundle = Bundle(folder, spec, (), sha256_of(folder / GOLDEN_FILE), asdict(proof.result()))
        graphs = []
        for flavour in options.flavours:
            say(f"writing and checking padded-fp32-{flavour}")
            graph = _write_graph(portable, checkpoint, flavour, options, folder)
            graphs.append(_gated(bundle, graph, suite, tokenizer))
        bundle = replace(bundle, graphs=tuple(graphs))
        write_description(bundle)
    return replace(bundle, path=out)


def suite_from_source(bundle: Bundle, source: str | Path, tokenizer: Tokenizer) -> Suite:
    """The golden suite computed again from the checkpoint that a bundle claims to come from.

    Raises:
        SentportError: When the checkpoint is another model, or its tokenizer differs from the bundle's.
    """
    spec = bundle.spec
    plain = (
        any(option["type"] == "Pooling" for option in spec.modules) and not (Path(source) / "modules.json").is_file()
    )
    pooling = "+".join(spec.modules[1]["modes"]) if plain else None
    checkpoint = load_checkpoint(source, pooling=pooling, normalize=True if spec.normalized else None)
    if checkpoint.spec.fingerprint != spec.fingerprint:
        raise SentportError(
            f"{source} is not what {bundle.path} was exported from: fingerprints {checkpoint.spec.fingerprint[:12]}… "
            f"and {spec.fingerprint[:12]}… differ"
        )
    check_tokenizer(tokenizer, checkpoint.tokenizer, spec.max_tokens, [*PARITY_TEXTS, *adversarial_lines()])
    return _suite(checkpoint, tokenizer)


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


def _suite(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Suite:
    config = checkpoint.model.transformer.config
    return build_suite(
        TorchEngine(checkpoint.model, device="cpu"),
        tokenizer,
        PARITY_TEXTS,
        vocabulary=config.vocab_size,
        token_types=config.type_vocab_size if checkpoint.model.uses_token_types else 1,
    )


def _trace(checkpoint: Checkpoint, options: ExportOptions) -> ir.Model:
    model = checkpoint.model
    traced = trace_padded(model, options.opset)
    return finish(traced, padded_inputs(model.uses_token_types), outputs(model.dim), options.ir_version)


def _write_graph(
    portable: ir.Model, checkpoint: Checkpoint, flavour: str, options: ExportOptions, folder: Path
) -> GraphRecord:
    inputs, ends = padded_inputs(checkpoint.model.uses_token_types), outputs(checkpoint.model.dim)
    model = portable
    if flavour == "ort":
        fused = fuse(portable, checkpoint.model.transformer.config)
        model = finish(fused, inputs, ends, options.ir_version)
    file = f"graphs/padded-fp32-{flavour}.onnx"
    proto = ir.to_proto(model)
    if proto.ByteSize() > _PROTOBUF_LIMIT_BYTES:
        raise SentportError("this model is over 2 GB, which one ONNX file cannot hold; not supported yet")
    (folder / file).write_bytes(proto.SerializeToString(deterministic=True))
    return GraphRecord(
        file=file,
        layout="padded",
        precision="fp32",
        flavour=flavour,
        inputs=inputs,
        outputs=ends,
        opset=model.opset_imports[""],
        ir_version=options.ir_version,
        sha256=sha256_of(folder / file),
        operators=operators(model),
        parity={},
    )


def _gated(bundle: Bundle, graph: GraphRecord, suite: Suite, tokenizer: Tokenizer) -> GraphRecord:
    """The record with its parity, or the gate's refusal with the graph's name in front."""
    return replace(graph, parity=check_graph(bundle, graph, suite, tokenizer).record())
