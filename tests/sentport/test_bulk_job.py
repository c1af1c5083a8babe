"""Bulk runs: right, resumed to the same bytes however they are killed, and refused in one line."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
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
from conftest import ROOT, Cli, run_cli

from sentport import Encoder
from sentport.bulk import blocks, job
from sentport.bulk.inputs import find_inputs
from sentport.bulk.job import Options, encode_files
from sentport.bulk.journal import Journal, remove
from sentport.bulk.manifest import Manifest, seal, unseal
from sentport.bulk.output import Output, find_output, publish, refuse_taken
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


def damage(path: Path) -> None:
    """Change one bit, which changes neither size nor time."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


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
    assert "3 texts of 5 lost their end to the limit of 48 tokens: input rows 1, 3, 4" in caplog.text
    kept = encode(encoder, path, tmp_path / "refused", on_truncate="error")
    np.testing.assert_allclose(kept, whole[[0, 2]], atol=1e-6)
    path.write_text("the cat\n" + "cat " * 100)
    encode(encoder, path, tmp_path / "one")
    assert "1 text of 2 lost its end to the limit of 48 tokens: input row 1" in caplog.text
    path.write_text("cat " * 100 + ("\n" + "cat " * 100) * 39)
    encode(encoder, path, tmp_path / "many")
    assert "40 texts of 40 lost their end to the limit of 48 tokens: input rows 0, 1, 2, 3, 4, 5, 6, 7 and 32 more" in (
        caplog.text
    )
    assert '"position": 4, "id": null' in (tmp_path / "refused" / "_bad-rows.jsonl").read_text()
    assert "92 tokens, the limit is 48" in (tmp_path / "refused" / "_bad-rows.jsonl").read_text()


def test_a_failed_run_is_resumed_by_the_same_command(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode(encoder, texts, tmp_path / "whole")
    folder = interrupt(encoder, texts, tmp_path / "v", monkeypatch)
    assert "stopped with 120 rows done; the same command goes on" in caplog.text
    first = folder / "part-00000.parquet"
    before = first.stat().st_mtime_ns
    damage(folder / "part-00001.parquet")
    (folder / ".part-00003.parquet.partial-1").touch()
    encode(encoder, texts, tmp_path / "v")
    assert f"going on with the unfinished run in {folder}, which has done 90 rows" in caplog.text
    assert (tmp_path / "v" / first.name).stat().st_mtime_ns == before
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")
    assert not folder.exists()


def test_an_unfinished_run_is_not_mixed_with_another(
    encoder: Encoder, tiny_bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v"
    folder = interrupt(encoder, texts, out, monkeypatch)
    left = contents(folder)
    with pytest.raises(SentportError, match="holds an unfinished run with --dim 24, this one has 8; add --force"):
        encode(encoder, texts, out, dim=8)
    with (
        Encoder(tiny_bundle, threads=2) as other,
        pytest.raises(SentportError, match="with --threads 1 x 1, this one has 2 x 1; add --force"),
    ):
        encode(other, texts, out)
    with monkeypatch.context() as patch, pytest.raises(SentportError, match=r"with graph .{12}, this one has 0{12};"):
        patch.setattr(encoder, "graph", "0" * 64)
        encode(encoder, texts, out)
    texts.write_text("\n".join(["new", *TEXTS]))
    with pytest.raises(SentportError, match="rows from 0 on differ from those of the unfinished run"):
        encode(encoder, texts, out)
    texts.write_text("\n".join(TEXTS[:60]) + "\n")
    with pytest.raises(SentportError, match="rows from 60 on differ"):
        encode(encoder, texts, out)
    assert contents(folder) == left
    journal = folder / "_job.jsonl"
    first, *others = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(seal({**unseal(first), "new": 1}).encode() + b"\n")
    with pytest.raises(SentportError, match="holds an unfinished run of another version of sentport; add --force"):
        encode(encoder, texts, out)
    journal.write_bytes(b"".join([first, *others]))
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


@pytest.mark.parametrize("name", ["v", "v.npy", "v.parquet"])
def test_a_part_damaged_before_the_end_is_not_published(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def publish_damaged(output: Output, journal: Journal, *arguments: Any, **options: Any) -> Manifest:
        damage(journal.part_path(3))
        return publish(output, journal, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(SentportError, match=r"part-00003\.\w+ is not what was written"):
        patch.setattr(job, "publish", publish_damaged)
        encode(encoder, texts, tmp_path / name)
    assert not (tmp_path / name).exists()
    np.testing.assert_allclose(encode(encoder, texts, tmp_path / name), encoder.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    "change", [lambda data: data[:50] + b"\n", lambda data: data.replace(b'"rows": 30', b'"rows": 31')]
)
def test_force_begins_a_damaged_run_again(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    folder = interrupt(encoder, texts, tmp_path / "v", monkeypatch)
    (folder / "mine").mkdir()
    (folder / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(SentportError, match="holds mine, which is of no run; move it, or add --force to remove it"):
        encode(encoder, texts, tmp_path / "v")
    journal = folder / "_job.jsonl"
    journal.write_bytes(change(journal.read_bytes()))
    with pytest.raises(SentportError, match=r"_job.jsonl is damaged \(.*\); add --force to begin that run again"):
        encode(encoder, texts, tmp_path / "v")
    np.testing.assert_allclose(encode(encoder, texts, tmp_path / "v", force=True), encoder.encode(TEXTS), atol=1e-6)
    assert not folder.exists()
    (tmp_path / "v" / "_manifest.json").write_text("{}")
    with pytest.raises(SentportError, match=r"_manifest.json is damaged \(.*\); encode the texts again, with --force"):
        encode(encoder, texts, tmp_path / "v")
    assert encode(encoder, texts, tmp_path / "v", force=True).shape == (200, 24)


def test_a_run_whose_lock_is_gone_touches_nothing(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lock = tmp_path / "v", fcntl.flock
    folder = find_output(out).job_folder

    def late(file: Any, how: int) -> None:
        """The run that held the lock ends between our opening of its journal and our locking of it."""
        remove(folder)
        lock(file, how)

    with monkeypatch.context() as patch, pytest.raises(SentportError, match="another run has just ended in"):
        patch.setattr(fcntl, "flock", late)
        encode(encoder, texts, out)
    real = Encoder.compute

    def unlinking(self: Encoder, *arguments: Any, **options: Any) -> Any:
        (folder / "_job.jsonl").unlink(missing_ok=True)
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(SentportError, match="was removed while this run was at work"):
        patch.setattr(Encoder, "compute", unlinking)
        encode(encoder, texts, out)
    assert not out.exists()


def test_vectors_that_no_type_holds_are_refused_by_row(
    encoder: Encoder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Encoder.compute

    def giving(value: float) -> Callable[..., Any]:
        def compute(self: Encoder, *arguments: Any, **options: Any) -> Any:
            vectors = real(self, *arguments, **options)
            vectors[2] = value
            return vectors

        return compute

    for value, stored, said in (
        (np.nan, "int8", "that is not finite"),
        (0.0, "binary", "of zeros, which has no signs"),
    ):
        monkeypatch.setattr(Encoder, "compute", giving(value))
        with pytest.raises(SentportError, match=f"has given input row 2 a vector {said}"):
            encode(encoder, texts, tmp_path / "v", stored=stored)
    assert (encode(encoder, texts, tmp_path / "v", stored="int8")[2] == 0).all()


def test_a_folder_of_shards_is_one_dataset_to_others(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes(b"the cat\n\xff\na dog\n")
    vectors = encode(encoder, tmp_path / "texts.txt", tmp_path / "v", part_rows=1)
    assert {"_manifest.json", "_bad-rows.jsonl"} <= {path.name for path in (tmp_path / "v").iterdir()}
    import pandas
    import pyarrow.dataset

    for table in (pyarrow.dataset.dataset(tmp_path / "v").to_table().to_pandas(), pandas.read_parquet(tmp_path / "v")):
        assert table["id"].tolist() == [0, 2]
        assert (np.stack(table["embedding"]) == vectors).all()


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
    (tmp_path / "app" / "_manifest.json").write_text('{"name": "an app"}')
    encode(encoder, texts, tmp_path / "v")
    before = contents(tmp_path)
    base = ["encode", str(tiny_bundle), "--input", str(texts), "--output"]
    for arguments, said in (
        ([str(tmp_path / "mine"), "--force"], "is a folder with other things in it"),
        ([str(tmp_path / "app"), "--force"], "is a folder with other things in it"),
        (
            [str(tmp_path / "v")],
            f"holds 200 vectors of tiny (fingerprint {encoder.info.fingerprint[:12]}); add --force",
        ),
        ([str(texts), "--force"], "is the input itself"),
        ([str(tmp_path / "no" / "v")], "is not a folder, so"),
        (["/"], "/ cannot be replaced; name a .npy or .parquet file"),
        ([str(tmp_path / "new.npy"), "--store", "int8"], "cannot hold texts, ids, int8 or binary"),
        ([str(tmp_path / "new"), "--store", "int4"], "stored type 'int4' is unknown"),
        ([str(tmp_path / "new"), "--prompt", "none"], "prompt 'none' is not saved"),
        ([str(tmp_path / "new"), "--shard-rows", "0"], "argument --shard-rows: '0' is not a whole number"),
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
        stdin=b'{"s": "the cat"}\n{"s": null}\n{"s": "a dog"}\n',
        check=True,
    )
    vectors = np.load(io.BytesIO(done.stdout))
    np.testing.assert_allclose(vectors[[0, 2]], encoder.encode(["the cat", "a dog"]), atol=1e-6)
    assert np.isnan(vectors[1]).all()
    assert json.loads(done.stderr) == {"position": 1, "id": None, "file": "-", "line": 2, "reason": "null"}


def test_a_run_without_any_row_that_can_be_encoded_ends_with_1(tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    assert cli("encode", str(tiny_bundle), "--input", str(tmp_path / "a.txt"), "--output", str(tmp_path / "v"))[0] == 1


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
        (texts, "l.npy", "is no folder"),
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
