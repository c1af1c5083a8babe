"""The wheel in environments of its own: without torch, on both numpy generations, and what it leaves out."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import environment, install_wheel, run_cli

CORE = ("tokenizers==0.23.3", "onnxruntime==1.31.1")  # the small build; the tests themselves run on the one for CUDA


def test_wheel_holds_the_packages_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if "/" in name and ".dist-info" not in name}
    assert {"sentport", "export"} <= tops <= {"sentport", "export", "training", "triton_repo", "bench"}
    assert "sentport/py.typed" in names


@pytest.fixture(scope="module", params=["numpy==1.26.4", "numpy==2.4.6"])
def python(request: pytest.FixtureRequest, wheel: Path) -> Path:
    """A Python that has sentport's core, one engine, and no torch."""
    name = "core-" + request.param.replace("==", "-")
    interpreter = environment(name, request.param, *CORE)
    install_wheel(interpreter, wheel)
    return interpreter


def test_encodes_without_torch(python: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    code = (
        "import sys, numpy, sentport\n"
        f"vectors = sentport.Encoder({str(tiny_bundle)!r}).encode(['the cat', '', 'a dog sat'])\n"
        "for name in ('torch', 'transformers', 'onnx'):\n"
        "    assert name not in sys.modules\n"
        "    try: __import__(name)\n"
        "    except ImportError: pass\n"
        "    else: raise SystemExit(f'{name} is installed here')\n"
        f"numpy.save({str(tmp_path / 'v.npy')!r}, vectors)\n"
        "print(numpy.__version__)"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    from sentport import Encoder

    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), Encoder(tiny_bundle).encode(["the cat", "", "a dog sat"]), atol=1e-6
    )
    assert done.stdout.strip() in str(python)


def test_verify_runs_and_export_names_its_extra_without_torch(python: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    assert (
        run_cli("verify", str(tiny_bundle), python=str(python), cwd=tmp_path, check=True).stdout.count(b"passed") == 2
    )
    done = run_cli("export", str(tmp_path), "--out", "x.bundle", python=str(python), cwd=tmp_path)
    assert done.returncode == 2
    assert b"pip install 'sentport[export,cpu]'" in done.stderr
    done = run_cli(
        "encode", str(tmp_path), "--input", "-", "--output", "-", python=str(python), cwd=tmp_path, stdin=b""
    )
    assert done.returncode == 2
    assert b"is half-written or not a bundle" in done.stderr


def test_folder_of_the_user_s_own_named_training_is_refused(python: Path, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    done = run_cli("doctor", python=str(python), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert "shadows sentport's own package `training`" in done.stderr.decode()
    script = python.with_name("sentport")
    assert subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True).returncode == 0
