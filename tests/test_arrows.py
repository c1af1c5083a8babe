"""Who may import whom (docs/architecture.md), read from the source, and what stays out of light imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from sentport.cli import COMMANDS

ROOT = Path(__file__).parent.parent
OURS = {"sentport", "export", "training", "triton_repo", "bench"}
HEAVY = {"torch", "transformers", "onnx", "onnx_ir", "onnxscript", "sentence_transformers"}


def imports(file: Path) -> set[str]:
    """Every module a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def packages_of(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def test_core_imports_none_of_the_four() -> None:
    assert files("sentport")
    for file in files("sentport"):
        assert not packages_of(imports(file)) & (OURS - {"sentport"}), file


@pytest.mark.parametrize("package", ["export", "training"])
def test_export_and_training_meet_in_the_checkpoint_folder_only(package: str) -> None:
    for file in files(package):
        assert not packages_of(imports(file)) & (OURS - {"sentport", package}), file


@pytest.mark.parametrize("package", ["bench", "triton_repo"])
def test_bench_and_triton_repo_know_no_modeling(package: str) -> None:
    for file in files(package):
        modules = imports(file)
        allowed = {"sentport", package} | ({"triton_repo"} if package == "bench" else set())
        assert not packages_of(modules) & (OURS - allowed), file
        assert not any(module.startswith("sentport.modeling") for module in modules), file
        if package == "bench":
            assert all(
                module.startswith("triton_repo.client") for module in modules if module.startswith("triton_repo.")
            ), file


def test_modeling_is_reached_through_engine_torch_alone() -> None:
    for file in files("sentport"):
        if "modeling" in file.parts or file == ROOT / "sentport" / "engines" / "torch.py":
            continue
        modules = imports(file)
        assert not any(module.startswith("sentport.modeling") for module in modules), file
        assert not packages_of(modules) & HEAVY, file


@pytest.mark.parametrize(
    "command",
    ["--help", "--version", *(f"{name} --help" for name in COMMANDS)],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    code = (
        "import sys\nfrom sentport.cli import main\n"
        f"assert main({command.split()!r}) == 0\n"
        "heavy = {'numpy', 'tokenizers', 'onnxruntime', 'torch', 'transformers', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_import_sentport_loads_no_torch_and_resolves_names() -> None:
    code = (
        "import sys, sentport\nassert 'numpy' not in sys.modules\n"
        "assert sentport.Encoder.__name__ == 'Encoder'\n"
        "assert sentport.TokenBatch.__name__ == 'TokenBatch'\n"
        "assert not {'torch', 'transformers', 'onnxruntime'} & set(sys.modules)\n"
        "try:\n    sentport.nonsense\nexcept AttributeError: pass\nelse: raise SystemExit('no AttributeError')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
