"""The gate on a finished bundle: from its own golden suite without torch, or against the checkpoint again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from export.gate import Parity, allowed_relative_l2, check
from export.suite import Suite, load_suite
from sentport.bundle import Bundle, GraphRecord
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import GateError, GraphError
from sentport.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verdict:
    """What the gate said about one graph: its parity, or the reason of its refusal."""

    graph: GraphRecord
    parity: Parity | None
    reason: str = ""


def verify_bundle(
    bundle: Bundle, source: str | Path | None = None, device: str = "cpu", trust_remote_code: bool = False
) -> list[Verdict]:
    """Run the gate on every graph of a bundle.

    Args:
        bundle: The bundle; hashes of all its files are checked.
        source: A checkpoint to compute the suite from again; without it the stored one is used, and no torch.
        device: Where the graphs run.
        trust_remote_code: Run code that the checkpoint brings along.

    Raises:
        SentportError: When a file is missing or changed, or the source is another model.
    """
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    if source is None:
        suite = load_suite(bundle.golden_file())
    else:
        from export.exporter import suite_from_source  # torch, only where the source is to be run

        suite = suite_from_source(bundle, source, tokenizer, trust_remote_code)
    return [_verdict(bundle, graph, suite, tokenizer, device) for graph in bundle.graphs]


def _verdict(bundle: Bundle, graph: GraphRecord, suite: Suite, tokenizer: Tokenizer, device: str) -> Verdict:
    try:
        return Verdict(graph, check_graph(bundle, graph, suite, tokenizer, device))
    except GateError as error:
        return Verdict(graph, None, str(error))


def check_graph(bundle: Bundle, graph: GraphRecord, suite: Suite, tokenizer: Tokenizer, device: str = "cpu") -> Parity:
    """Run the gate on one graph of a bundle.

    Raises:
        GateError: Naming the graph.
    """
    try:
        engine = OnnxRuntimeEngine(bundle, graph, device=device)
    except GraphError as error:
        raise GateError(f"{graph.file} is refused: {error}") from error
    suite = suite.without_types() if graph.layout == "packed" else suite
    try:
        limit = allowed_relative_l2(bundle.spec.architecture)
        return check(engine.run, suite, tokenizer, relative_l2=limit)
    except GateError as error:
        raise GateError(f"{graph.file} is refused: {error}") from error
    finally:
        engine.close()
