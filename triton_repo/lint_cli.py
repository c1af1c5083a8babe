"""``sentport lint``."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = "Check a Triton model repository without a server."
EXAMPLE = "sentport lint models --release 24.10 --gpu no"
_SAID = {"yes": True, "no": False, None: None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("repository", type=Path, metavar="REPOSITORY", help="the folder with one folder for each model")
    parser.add_argument("--release", metavar="NAME", help="Triton release that it is to run on (24.10)")
    parser.add_argument("--gpu", choices=("yes", "no"), help="whether the server has a GPU (default: not looked at)")
    parser.add_argument(
        "--server-env", type=Path, metavar="DIR", help="python environment of the server, to look at (default: none)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings: 0 when there are none, else 1."""
    import json
    from dataclasses import asdict

    from sentport.errors import SentportError
    from triton_repo.lint import Target, lint
    from triton_repo.releases import NEWEST, release_named

    environment = arguments.server_env
    if environment is not None and not any(environment.glob("lib/python3.*/site-packages")):
        raise SentportError(f"{environment} is no python environment: it has no lib/python3.*/site-packages")
    target = Target(release_named(arguments.release or NEWEST), _SAID[arguments.gpu], environment)
    findings = lint(arguments.repository, target)
    if arguments.json:
        print(json.dumps([asdict(each) for each in findings], indent=1, ensure_ascii=False))
        return bool(findings)
    for each in findings:
        print(": ".join(part for part in (each.file, each.field, each.what) if part))
        print(f"  fix: {each.fix}  [{each.rule}, {_proven(each.proof)}]")
    if not findings and not arguments.quiet:
        print(f"{arguments.repository}: nothing found")
    return bool(findings)


def _proven(proof: str) -> str:
    return {"server": "proven on a server", "onnxruntime": "proven with ONNX Runtime"}.get(proof, proof)
