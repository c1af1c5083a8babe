"""``sentport verify``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from export.verify import Verdict

DESCRIPTION = "Repeat the parity gate on a bundle, from its golden suite (no torch needed) or against the checkpoint."
EXAMPLE = "sentport verify minilm.bundle --source ./all-MiniLM-L6-v2"

_SHOWN = 3  # names of files that another engine runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle folder")
    parser.add_argument("--source", metavar="CKPT", help="compute the source's vectors again from this checkpoint")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that the checkpoint brings along; read it first"
    )
    parser.add_argument("--engine", default="onnxruntime", help="onnxruntime, native (its files), openvino or tensorrt")
    parser.add_argument("--device", help="cpu or cuda (default: cpu; cuda for engine tensorrt, which has no other)")
    parser.add_argument("--expect", metavar="SHA256", help="refuse unless bundle.json has this hash")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Verify and report; 1 when a graph is refused."""
    from export.verify import judged_by, verify_bundle
    from sentport.bundle import read_bundle

    bundle = read_bundle(arguments.bundle, arguments.expect)
    device = arguments.device or ("cuda" if arguments.engine == "tensorrt" else "cpu")
    options = arguments.engine, device, arguments.trust_remote_code
    verdicts = verify_bundle(bundle, arguments.source, *options)
    ran = [verdict for verdict in verdicts if not verdict.skipped]
    passed = bool(ran) and all(verdict.parity is not None for verdict in ran)
    if arguments.json:
        graphs = {verdict.graph.file: _as_json(verdict) for verdict in verdicts}
        print(json.dumps({"passed": passed, "fingerprint": bundle.spec.fingerprint, "graphs": graphs}))
        return 0 if passed else 1
    for verdict in verdicts:
        if verdict.parity is None:
            print(f"{'not run' if verdict.skipped else 'REFUSED'}  {verdict.reason}")
            continue
        parity = verdict.parity
        print(
            f"passed   {verdict.graph.file}  worst cosine {parity.cosine:.7f}, mean {parity.mean_cosine:.7f}, "
            f"rank agreement {parity.rank:.7f}, relative L2 {parity.relative_l2:.1e}, "
            f"alone against in company {parity.company:.1e}, {parity.rows} vectors, by "
            f"{judged_by(verdict.graph, arguments.engine, device)}"
        )
    others = sorted({graph.file for graph in (*bundle.graphs, *bundle.native)} - {v.graph.file for v in verdicts})
    if others:
        shown = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        print(f"not run  {shown}: not for engine {arguments.engine}")
    return 0 if passed else 1


def _as_json(verdict: Verdict) -> dict[str, Any]:
    if verdict.parity is not None:
        return asdict(verdict.parity)
    return {"skipped" if verdict.skipped else "refused": verdict.reason}
