"""``sentport export``."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from export.build_cli import add_plan_arguments, options_of, refuse_plan_options, steps_to_stderr
from export.build_cli import report as report_plans

if TYPE_CHECKING:
    from export.build import BuildOptions, Outline
    from sentport.bundle import Bundle
    from sentport.plans import Plan

DESCRIPTION = "Turn a checkpoint into a verified bundle: one graph with pooling and normalisation inside."
EXAMPLE = "sentport export ./all-MiniLM-L6-v2 --out minilm.bundle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="SOURCE", help="checkpoint folder, or a model id of the hub")
    parser.add_argument("--out", metavar="BUNDLE", type=Path, required=True, help="folder to make")
    parser.add_argument(
        "--layout", default="padded", help="graph layouts, comma-separated: padded, packed (default: padded)"
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        help="precisions, comma-separated: fp32, fp16, bf16, int8 (default: fp32); of int8, flavour ort has a scale "
        "for each token, portable static ones that TensorRT takes too",
    )
    parser.add_argument(
        "--flavour", help="comma-separated: portable, ort (default: both, ort where ONNX Runtime fuses something)"
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        type=Path,
        help="int8: texts like yours, one a line, of which the first 1,024 count (default: shipped ones)",
    )
    parser.add_argument(
        "--gate-corpus",
        metavar="FILE",
        type=Path,
        help="int8: texts like yours, one a line, which must be near to each other as the source has them (default: "
        "the parity texts); the bundle keeps the first 512",
    )
    parser.add_argument(
        "--min-cosine",
        type=float,
        metavar="C",
        help="fp16, bf16, int8: refuse a worse cosine to the source (default: 0.9999, 0.999, 0.95, and no less); int8 "
        "keeps layers in fp32 until it holds",
    )
    parser.add_argument(
        "--pooling",
        help="only for checkpoints that do not say themselves: cls, max, mean, mean_sqrt_len_tokens, weightedmean, "
        "lasttoken, some of them joined by +, avg_first_last, avg_top2; SimCSE: cls_before_pooler (unsupervised), "
        "cls_after_pooler (supervised)",
    )
    parser.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, help="append L2 normalisation (default: as saved)"
    )
    parser.add_argument("--dim", type=int, help="cut vectors to their first values (Matryoshka); default: as saved")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="cut texts at N tokens; default: as saved")
    parser.add_argument("--revision", help="of a hub's model: branch, tag or full commit; default: its main branch")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that the checkpoint brings along; read it first (a hub's model needs --revision COMMIT)",
    )
    parser.add_argument("--opset", type=int, help="ONNX operator set (18)")
    parser.add_argument("--ir-version", type=int, help="ONNX file format (10)")
    parser.add_argument(
        "--corpus", metavar="FILE", type=Path, help="texts like yours, one a line: the bundle keeps their lengths"
    )
    parser.add_argument("--tensorrt", action="store_true", help="then build a TensorRT plan of each portable graph")
    add_plan_arguments(parser.add_argument_group("with --tensorrt, as for `sentport build`"))
    parser.add_argument("--force", action="store_true", help="replace an existing bundle once the new one has passed")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Export and report."""
    _require_packages()
    plans = _plans_asked_for(arguments)
    from export.exporter import ExportOptions, export_bundle
    from export.trace import DEFAULT_IR_VERSION, DEFAULT_OPSET
    from sentport.cli.parity import parity_table

    options = ExportOptions(
        layouts=_names(arguments.layout),
        precisions=_names(arguments.precision),
        flavours=None if arguments.flavour is None else _names(arguments.flavour),
        pooling=arguments.pooling,
        normalize=arguments.normalize,
        dim=arguments.dim,
        max_tokens=arguments.max_tokens,
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
        calibration=arguments.calibration,
        gate_corpus=arguments.gate_corpus,
        corpus=arguments.corpus,
        min_cosine=arguments.min_cosine,
        opset=DEFAULT_OPSET if arguments.opset is None else arguments.opset,
        ir_version=DEFAULT_IR_VERSION if arguments.ir_version is None else arguments.ir_version,
        force=arguments.force,
    )
    say = steps_to_stderr(arguments)
    gc.freeze()  # collections would walk all of torch again and again, the last ones of the interpreter included
    bundle = export_bundle(arguments.source, arguments.out, options, say)
    gc.freeze()
    built = [] if plans is None else _build(bundle, plans, say)
    size = sum(file.stat().st_size for file in bundle.path.rglob("*") if file.is_file())
    if arguments.json:
        graphs = (*bundle.graphs, *bundle.native)
        report = {
            "path": str(bundle.path),
            "bytes": size,
            "fingerprint": bundle.spec.fingerprint,
            "graphs": {graph.file: dict(graph.parity) for graph in graphs},
            "int8": {graph.file: dict(graph.int8) for graph in graphs if graph.int8 is not None},
            "plans": [asdict(plan) for plan, _ in built],
        }
        print(json.dumps(report))
        return 0
    print(f"bundle        {bundle.path}  ({size / 1e6:.0f} MB)")
    print(f"parity        to the source, over {bundle.graphs[0].parity['rows']} vectors a graph")
    print("\n".join(parity_table(bundle)))
    report_plans(bundle, built, as_json=False)
    print(f"next          sentport encode {bundle.path} --input texts.txt --output vectors.npy")
    return 0


def _plans_asked_for(arguments: argparse.Namespace) -> BuildOptions | None:
    """How plans are to be built; what stands in their way is told before the export."""
    if not arguments.tensorrt:
        refuse_plan_options(arguments)
        return None
    from export.tensorrt import check_target
    from sentport.errors import SentportError

    options = options_of(arguments, None, None)
    if arguments.flavour is not None and "portable" not in _names(arguments.flavour):
        raise SentportError(f"--tensorrt needs flavour portable, which --flavour {arguments.flavour} leaves out")
    if arguments.corpus is None and not options.edges:
        raise SentportError("--tensorrt plans profiles: give --corpus FILE with texts like those that will come")
    check_target(options.target)
    return replace(options, corpus=None, force=False)  # the bundle has the corpus's lengths, and is new


def _build(bundle: Bundle, options: BuildOptions, say: Callable[[str], None]) -> list[tuple[Plan, Outline]]:
    from export.build import build_plans
    from sentport.errors import SentportError

    try:
        return build_plans(bundle, options, say)
    except SentportError as error:
        raise type(error)(f"{bundle.path} is exported, but its plans are not built: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _require_packages() -> None:
    from importlib.util import find_spec

    from sentport.errors import SentportError

    missing = [
        name for name in ("torch", "transformers", "onnx", "onnxscript", "onnxruntime") if find_spec(name) is None
    ]
    if missing:
        raise SentportError(
            f"export needs {', '.join(missing)}, not installed here: pip install 'sentport[export,cpu]'"
        )
