"""Every block of the README, run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

BLOCKS = re.findall(r"(<!-- run [^\n]*\n)?```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def folder(minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder after the export step, which `minilm_bundle` ran through the same command."""
    where = tmp_path_factory.mktemp("reader")
    shutil.copytree(minilm_bundle, where / "minilm.bundle")
    return where


def test_readme_has_its_blocks() -> None:
    assert len(BLOCKS) >= 9


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number: int, folder: Path) -> None:
    elsewhere, language, text = BLOCKS[number]
    if elsewhere:
        return
    if language == "bash" and "make " in text:
        for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
            subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
        return
    if "pip install" in text:
        declared = (ROOT / "pyproject.toml").read_text()
        extras = re.findall(r"\.\[(\w+)\]", text)
        assert extras
        assert all(f"\n{extra} = [" in declared for extra in extras)
        return
    if "sentport export" in text:
        text = text.replace("sentport export", "sentport export --help >")  # the fixture ran it; 30 s a time
        text = re.sub(r"(--help >).*", r"\1 /dev/null", text)
    command = ["bash", "-euo", "pipefail", "-c", text] if language == "bash" else [sys.executable, "-c", text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
