"""The gate on a finished bundle: from its own golden suite without torch, or against the checkpoint again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from export.gate import Parity, check
from export.suite import Suite, load_suite
from sentport.bundle import Bundle, GraphRecord
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import GateError
from sentport.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verdict:
    """What the gate said about one graph: its parity, or the reason of its refusal."""

    graph: GraphRecord
    parity: Parity | None
    reason: str = ""


def verify_bundle(bundle: Bundle, source: str | Path | None = None, device: str = "cpu") -> list[Verdict]:
    """Run the gate on every graph of a bundle.

    Args:
        bundle: The bundle; hashes of all its files are checked.
        source: A checkpoint to compute the suite from again; without it the stored one is used, and no torch.
        device: Where the graphs run.

    Raises:
        SentportError: When a file is missing or changed, or the source is another model.
    """
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    suite = load_suite(bundle.golden_file()) if source is None else _suite_of(bundle, source, tokenizer)
    return [_verdict(bundle, graph, suite, tokenizer, device) for graph in bundle.graphs]


def _verdict(bundle: Bundle, graph: GraphRecord, suite: Suite, tokenizer: Tokenizer, device: str) -> Verdict:
    try:
        return Verdict(graph, check_graph(bundle, graph, suite, tokenizer, device))
    except GateError as error:
        return Verdict(graph, None, str(error))


def _suite_of(bundle: Bundle, source: str | Path, tokenizer: Tokenizer) -> Suite:
    from export.exporter import suite_from_source

    return suite_from_source(bundle, source, tokenizer)


def check_graph(bundle: Bundle, graph: GraphRecord, suite: Suite, tokenizer: Tokenizer, device: str = "cpu") -> Parity:
    """Run the gate on one graph of a bundle.

    Raises:
        GateError: Naming the graph.
    """
    engine = OnnxRuntimeEngine(bundle, graph, device=device)
    try:
        return check(engine.run, suite, tokenizer)
    except GateError as error:
        raise GateError(f"{graph.file} is refused: {error}") from error
    finally:
        engine.close()
