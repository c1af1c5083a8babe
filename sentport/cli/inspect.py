"""``sentport inspect``."""

from __future__ import annotations

import argparse

DESCRIPTION = "Show what a bundle holds: model, limits, prompts, graphs and their parity."
EXAMPLE = "sentport inspect minilm.bundle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle folder")
    parser.add_argument("--expect", metavar="SHA256", help="refuse unless bundle.json has this hash")
    parser.add_argument("--json", action="store_true", help="print bundle.json as it is")


def run(arguments: argparse.Namespace) -> int:
    """Check the hashes of all files and describe the bundle."""
    from sentport.bundle import DESCRIPTION_FILE, read_bundle, sha256_of
    from sentport.cli.parity import parity_table
    from sentport.cli.plans import plan_lines
    from sentport.plans import plan_file, read_plans

    bundle = read_bundle(arguments.bundle, arguments.expect)
    bundle.tokenizer_file()
    bundle.golden_file()
    for graph in (*bundle.graphs, *bundle.native):
        bundle.graph_file(graph)
    plans = read_plans(bundle)
    for plan in plans:
        plan_file(bundle, plan)
    description = bundle.path / DESCRIPTION_FILE
    if arguments.json:
        print(description.read_text(encoding="utf-8"), end="")
        return 0
    spec = bundle.spec
    revision = f" at revision {spec.revision}" if spec.revision else ""
    rows = [
        ("source", f"{spec.source}{revision} ({spec.architecture}), exported by sentport {bundle.sentport}"),
        ("chain", " > ".join(spec.chain)),
        ("dim", f"{spec.dim}, similarity {spec.similarity}"),
        ("max tokens", f"{spec.max_tokens} ({spec.max_tokens_source})"),
        ("prompts", ", ".join(f"{name}={text!r}" for name, text in spec.prompts.items()) or "none"),
        ("default prompt", spec.default_prompt or "none"),
        ("tokenizer", f"ids proven equal on {bundle.tokenizer_proof['lines']} lines"),
        ("fingerprint", spec.fingerprint),
        ("bundle.json", f"SHA-256 {sha256_of(description)}"),
    ]
    for name, value in rows:
        print(f"{name:<15} {value}")
    for graph in bundle.graphs:
        files = [graph.file] if graph.data_sha256 is None else [graph.file, graph.data_file]
        size = sum((bundle.path / file).stat().st_size for file in files) / 1e6
        packed = f", packed: {graph.packed}" if graph.packed else ""
        print(f"{'graph':<15} {' + '.join(files)}  {size:.0f} MB{packed}, opset {graph.opset}, IR {graph.ir_version}")
    for record in bundle.native:
        size = (bundle.path / record.file).stat().st_size / 1e6
        print(f"{'native':<15} {record.file}  {size:.0f} MB, for engine native on a CPU")
    print("\n".join(parity_table(bundle)))
    for plan in plans:
        print("\n".join(plan_lines(bundle, plan)))
    return 0
