"""Bulk runs: right, resumed to the same bytes however they are killed, and refused in one line."""

from __future__ import annotations

import errno
import io
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bulk_kills import contents
from conftest import ROOT, run_cli

from sentport import Encoder
from sentport.bulk import blocks
from sentport.bulk.inputs import find_inputs
from sentport.bulk.job import Options, encode_files
from sentport.bulk.output import find_output, refuse_taken
from sentport.bulk.store import open_vectors
from sentport.cli import main
from sentport.errors import SentportError

WORDS = ["a", "the", "cat", "dog", "sat", "ran", "on", "in", "mat", "park", "red", "blues", ".", "!", "é", "日", "本"]
TEXTS = [" ".join(random.Random(n).choices(WORDS, k=(n + 1) % 30)) for n in range(200)]


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return Encoder(tiny_bundle, threads=1)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return path


def encode(encoder: Encoder, texts: Path, out: Path, force: bool = False, **options: Any) -> np.ndarray:
    inputs, output = find_inputs([str(texts)]), find_output(out)
    refuse_taken(output, inputs, force=force)
    encode_files(encoder, inputs, output, Options(**{"part_rows": 30, **options}), force=force)
    return open_vectors(out).load().vectors


def interrupt(encoder: Encoder, texts: Path, out: Path, monkeypatch: pytest.MonkeyPatch, calls: int = 5) -> Path:
    """A run that ends in the third part; the folder that it leaves."""
    real, made = Encoder.compute, []

    def failing(self: Encoder, *arguments: Any, **options: Any) -> Any:
        made.append(1)
        if len(made) == calls:
            raise KeyboardInterrupt
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Encoder, "compute", failing)
        encode(encoder, texts, out)
    return find_output(out).job_folder


@pytest.mark.parametrize("options", [{}, {"prompt": "query", "dim": 8}])
def test_vectors_are_the_encoder_s_own(
    options: dict[str, Any], encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "STREAM_ROWS", 7)
    monkeypatch.setattr(blocks, "_BLOCK_CHARACTERS", 300)
    found = encode(encoder, texts, tmp_path / "v", **options)
    np.testing.assert_allclose(found, encoder.encode(TEXTS, **options), atol=1e-6)
    parts = sorted((tmp_path / "v").glob("*.parquet"))
    assert len(parts) == 7
    assert found.shape == (200, options.get("dim", 24))


def test_no_rows_at_all(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    for name in ("v.npy", "v.parquet", "v"):
        assert encode(encoder, tmp_path / "empty.txt", tmp_path / name).shape == (0, 24)


def test_long_texts_are_bad_rows_when_truncation_is_an_error(
    encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("\n".join(["the cat", "cat " * 100, "a dog", "cat " * 100, "dog " * 90]))
    whole = encode(encoder, path, tmp_path / "warned")
    assert "3 texts of 5 lost their end to the limit of 48 tokens" in caplog.text
    kept = encode(encoder, path, tmp_path / "refused", on_truncate="error")
    np.testing.assert_allclose(kept, whole[[0, 2]], atol=1e-6)
    assert '"position": 4, "id": null' in (tmp_path / "refused" / "bad-rows.jsonl").read_text()
    assert "92 tokens, the limit is 48" in (tmp_path / "refused" / "bad-rows.jsonl").read_text()


def test_a_failed_run_is_resumed_by_the_same_command(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(encoder, texts, tmp_path / "whole")
    folder = interrupt(encoder, texts, tmp_path / "v", monkeypatch)
    first = folder / "part-00000.parquet"
    before = first.stat().st_mtime_ns
    (folder / "part-00001.parquet").write_bytes(b"damaged by something else")
    (folder / ".part-00003.parquet.partial-1").touch()
    encode(encoder, texts, tmp_path / "v")
    assert (tmp_path / "v" / first.name).stat().st_mtime_ns == before
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")
    assert not folder.exists()


def test_an_unfinished_run_is_not_mixed_with_another(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v"
    folder = interrupt(encoder, texts, out, monkeypatch)
    left = contents(folder)
    with pytest.raises(SentportError, match="holds an unfinished run with dim 24, this one has 8; add --force"):
        encode(encoder, texts, out, dim=8)
    texts.write_text("\n".join(["new", *TEXTS]))
    with pytest.raises(SentportError, match="rows from 0 on differ from those of the unfinished run"):
        encode(encoder, texts, out)
    texts.write_text("\n".join(TEXTS[:60]) + "\n")
    with pytest.raises(SentportError, match="rows from 60 on differ"):
        encode(encoder, texts, out)
    assert contents(folder) == left
    assert encode(encoder, texts, out, force=True).shape == (60, 24)
    assert not folder.exists()


def test_one_run_at_a_time(encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, said = Encoder.compute, []

    def second(self: Encoder, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Encoder, "compute", real)
        with pytest.raises(SentportError, match="another run is at work"):
            encode(encoder, texts, tmp_path / "v")
        said.append(1)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "compute", second)
    assert encode(encoder, texts, tmp_path / "v").shape == (200, 24)
    assert said


@pytest.mark.parametrize("name", ["v.npy", "v.parquet", "v"])
def test_full_disk_damages_nothing(
    name: str, encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(encoder, texts, tmp_path / f"whole-{name}")
    encode(encoder, texts, tmp_path / name)
    old = contents(tmp_path)
    texts.write_text("\n".join(reversed(TEXTS)))
    room = [4000]

    class Full(io.FileIO):
        def write(self, data: Any) -> int | None:  # type: ignore[override]
            room[0] -= len(data)
            if room[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    real: Callable[..., Any] = io.open

    def small(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return io.BufferedWriter(Full(file, "w")) if mode == "wb" else real(file, mode, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(SentportError, match=r"the disk of .* is full; free some"):
        patch.setattr(io, "open", small)
        encode(encoder, texts, tmp_path / name, force=True)
    texts.write_text("\n".join(TEXTS))
    found = {file: data for file, data in contents(tmp_path).items() if f".{name}.job/" not in file}
    assert found == old
    texts.write_text("\n".join(reversed(TEXTS)))
    again = encode(encoder, texts, tmp_path / name, force=True)
    np.testing.assert_allclose(again, encoder.encode(TEXTS[::-1]), atol=1e-6)


def test_folders_that_are_refused(
    encoder: Encoder, tiny_bundle: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text('{"name": "an app"}')
    encode(encoder, texts, tmp_path / "v")
    before = contents(tmp_path)
    base = ["encode", str(tiny_bundle), "--input", str(texts), "--output"]
    for arguments, said in (
        ([str(tmp_path / "mine"), "--force"], "is a folder with other things in it"),
        (
            [str(tmp_path / "v")],
            f"holds 200 vectors of tiny (fingerprint {encoder.info.fingerprint[:12]}); add --force",
        ),
        ([str(texts), "--force"], "is the input itself"),
        ([str(tmp_path / "no" / "v")], "is not a folder, so"),
        ([str(tmp_path / "new.npy"), "--store", "int8"], "cannot hold texts, ids, int8 or binary"),
        ([str(tmp_path / "new"), "--store", "int4"], "stored type 'int4' is unknown"),
        ([str(tmp_path / "new"), "--prompt", "none"], "prompt 'none' is not saved"),
        ([str(tmp_path / "new"), "--shard-rows", "0"], "expected 1 or more"),
    ):
        assert main([*base, *arguments]) == 2
        message = capsys.readouterr().err
        assert said in message
        assert message.count("\n") == 1
    assert contents(tmp_path) == before


def test_without_pyarrow_the_extra_is_named_and_npy_works(tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from sentport.cli import main; sys.exit(main(sys.argv[1:]))"
    base = [sys.executable, "-c", code, "encode", str(tiny_bundle), "--input", str(texts), "--output"]
    done = subprocess.run([*base, str(tmp_path / "v.npy")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*base, str(tmp_path / "v")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "pip install 'sentport[bulk]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v", []),
        ("v.npy", ["--force"]),
        pytest.param("v", ["--force", "--store", "int8", "--keep-text"], marks=pytest.mark.full),
        pytest.param("v.parquet", ["--force"], marks=pytest.mark.full),
    ],
)
def test_killed_between_any_two_writes_it_resumes_to_the_same_bytes(
    name: str, options: list[str], tiny_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_bytes(b"the cat\n\xff\xfe\nthe dog sat\nlast\nin the park")
    (tmp_path / "runs").mkdir()
    script = [sys.executable, "-P", str(ROOT / "tests" / "bulk_kills.py"), str(tiny_bundle), "texts.txt", name]
    done = subprocess.run(
        [*script, str(tmp_path / "runs"), "--shard-rows", "2", *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_killed_at_random_times_it_resumes_to_the_same_bytes(tiny_bundle: Path, tmp_path: Path) -> None:
    drawn = random.Random(0)
    many = tmp_path / "many.txt"
    many.write_text("\n".join(" ".join(drawn.choices(WORDS, k=drawn.randint(1, 12))) for _ in range(8_000)))

    def command(out: Path) -> list[str]:
        options = ["--threads", "1", "--shard-rows", "400", "-q"]
        return [sys.executable, "-m", "sentport", "encode", tiny_bundle, "--input", many, "--output", out, *options]

    subprocess.run(command(tmp_path / "whole"), check=True, cwd=ROOT)
    kills, started = 0, time.monotonic()
    while not (tmp_path / "v").exists():
        process = subprocess.Popen(command(tmp_path / "v"), cwd=ROOT)
        parts = len(list((tmp_path / ".v.job").glob("part-*")))
        while process.poll() is None and len(list((tmp_path / ".v.job").glob("part-*"))) <= parts:
            time.sleep(0.005)  # until it has a part more than the last one
        if kills < 5:
            time.sleep(drawn.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        assert process.wait() in (0, -signal.SIGKILL)
        assert time.monotonic() - started < 120
    assert kills == 5
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


@pytest.mark.full
def test_a_disk_that_is_really_full(tiny_bundle: Path, texts: Path, tmp_path: Path) -> None:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    run = f"{sys.executable} -m sentport encode {tiny_bundle} --input {texts} --output {disk}/v --shard-rows 30"
    script = (
        f"mount -t tmpfs -o size=20k tmpfs {disk}; {run}; echo $?; ls -A {disk}/.v.job | wc -l; "
        f"mount -o remount,size=400k {disk}; {run} -q; echo $?; ls {disk}/v | wc -l"
    )
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    code, kept, again, files = map(int, done.stdout.split())
    assert (code, again, files) == (2, 0, 8)
    assert kept > 1
    assert f"the disk of {disk}/v is full" in done.stderr
    assert done.stderr.count("\n") == 1


def test_from_a_pipe_in_another_format(tiny_bundle: Path, encoder: Encoder) -> None:
    done = run_cli(
        *("encode", str(tiny_bundle), "--input", "-", "--format", "jsonl", "--column", "s", "--output", "-", "-q"),
        stdin=b'{"s": "the cat"}\n{"s": "a dog"}\n',
        check=True,
    )
    np.testing.assert_allclose(np.load(io.BytesIO(done.stdout)), encoder.encode(["the cat", "a dog"]), atol=1e-6)


def test_nothing_that_belongs_to_others_is_replaced(
    encoder: Encoder, tiny_bundle: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encode(encoder, texts, tmp_path / "v")
    (tmp_path / "b.npy.json").write_text('{"text": "mine"}\n')
    (tmp_path / ".j.npy.job").mkdir()
    (tmp_path / ".j.npy.job" / "letter.txt").write_text("dear")
    (tmp_path / ".l.npy.job").symlink_to(tmp_path / ".j.npy.job")
    before = contents(tmp_path)
    for given, out, said in (
        (texts, "b.npy", "b.npy.json exists, which"),
        (tmp_path / "b.npy.json", "b.npy", "is the input itself, which the output would replace"),
        (tmp_path / "v" / "*.parquet", "v", "is an input in the output folder"),
        (texts, "j.npy", "holds other things"),
        (texts, "l.npy", "is a link"),
        (texts, "v.csv", "v.csv cannot be written; expected a .npy or .parquet file, or a folder"),
    ):
        force = [] if said.startswith("b.npy.json") else ["--force"]
        kind = ["--format", "jsonl"] if given.suffix == ".json" else []
        where = ["--input", str(given), *kind, "--output", str(tmp_path / out)]
        assert main(["encode", str(tiny_bundle), *where, *force]) == 2
        message = capsys.readouterr().err
        assert said in message
        assert message.count("\n") == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["v", "v.npy"])
def test_what_comes_to_lie_there_meanwhile_stays(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real, out = Encoder.compute, tmp_path / name

    def slow(self: Encoder, *arguments: Any, **options: Any) -> Any:
        if name == "v":
            out.mkdir(exist_ok=True)
        (out / "letter.txt" if name == "v" else out).write_text("dear")
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(SentportError, match="has come to exist while this run"):
        patch.setattr(Encoder, "compute", slow)
        encode(encoder, texts, out)
    (found,) = [path for path in tmp_path.rglob("*") if path.is_file() and ".job" not in str(path) and path != texts]
    assert found.read_text() == "dear"
    found.unlink()
    np.testing.assert_allclose(encode(encoder, texts, out), encoder.encode(TEXTS), atol=1e-6)
