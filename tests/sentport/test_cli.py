"""The command line's manners."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Cli, run_cli

from sentport.cli import COMMANDS


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_bytes("the cat\r\n\na\u2028dog\nlast".encode())
    return path


def test_encode_writes_one_row_a_line(tiny_bundle: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    done = run_cli(
        "encode", str(tiny_bundle), "--input", str(lines), "--output", str(out), "--threads", "1", check=True
    )
    assert done.stdout == b""
    assert b"4 vectors of 24" in done.stderr
    from sentport import Encoder

    wanted = Encoder(tiny_bundle, threads=1).encode(["the cat", "", "a\u2028dog", "last"])
    assert (np.load(out) == wanted).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "vectors.npy", "vectors.npy.json"]


def test_encode_from_stdin_to_stdout(tiny_bundle: Path) -> None:
    done = run_cli(
        *("encode", str(tiny_bundle), "--input", "-", "--output", "-", "--dim", "8", "--prompt", "query", "-q"),
        stdin=b"\xef\xbb\xbfsat\n",
        check=True,
    )
    assert np.load(io.BytesIO(done.stdout)).shape == (1, 8)
    assert done.stderr == b""
    assert np.load(
        io.BytesIO(run_cli("encode", str(tiny_bundle), "--input", "-", "--output", "-", stdin=b"").stdout)
    ).shape == (0, 24)


def test_encode_refuses_to_overwrite_and_bad_input(tiny_bundle: Path, lines: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "old.npy"
    out.write_bytes(b"precious")
    base = ("encode", str(tiny_bundle), "--input", str(lines), "--output", str(out))
    code, _, said = cli(*base)
    assert (code, "exists; add --force" in said) == (2, True)
    assert out.read_bytes() == b"precious"
    assert cli(*base, "--force")[0] == 0
    assert np.load(out).shape == (4, 24)
    lines.write_bytes(b"fine\n\xff\xfe\nfine\n\x80\n")
    new = ("encode", str(tiny_bundle), "--input", str(lines), "--output", str(tmp_path / "new.npy"))
    code, _, said = cli(*new, "--on-bad", "stop")
    assert (code, "texts.txt line 2 cannot be encoded (invalid UTF-8)" in said) == (2, True)
    assert not list(tmp_path.glob("*new*"))
    done = run_cli(*new, check=True)
    assert b"2 rows cannot be encoded" in done.stderr
    assert np.isnan(np.load(tmp_path / "new.npy")).all(axis=1).tolist() == [False, True, False, True]


def test_encode_replaces_nothing_but_files_and_never_its_input(
    tiny_bundle: Path, lines: Path, tmp_path: Path, cli: Cli
) -> None:
    base = ("encode", str(tiny_bundle), "--input", str(lines), "--force", "--output")
    before = lines.read_bytes()
    assert "is the input itself" in cli(*base, str(lines))[2]
    assert lines.read_bytes() == before
    assert "is a folder with other things in it" in cli(*base, str(tmp_path))[2]
    os.mkfifo(tmp_path / "pipe.npy")
    assert "is not a file that can be replaced" in cli(*base, str(tmp_path / "pipe.npy"))[2]
    (tmp_path / "target.npy").touch()
    (tmp_path / "link.npy").symlink_to(tmp_path / "target.npy")
    assert cli(*base, str(tmp_path / "link.npy"))[0] == 0
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "target.npy").shape == (4, 24)


def test_vectors_into_a_closed_pipe_are_quiet(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "many.txt").write_text("the cat\n" * 20_000)
    command = f"{sys.executable} -m sentport encode {tiny_bundle} -q --input {tmp_path}/many.txt --output - | head -c 9"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT)
    assert done.stderr == b""
    closed = f"{sys.executable} -m sentport encode {tiny_bundle} --input - --output {tmp_path}/v.npy <&-"
    done = subprocess.run(["bash", "-c", closed], capture_output=True, cwd=ROOT)
    assert done.returncode == 2
    assert b"standard input is closed" in done.stderr


MISTAKES = [
    (("encdoe",), "did you mean `encode`?"),
    (("zzzzzz",), "unknown command"),
    (("encode",), "the following arguments are required"),
    (("encode", "x", "--inptu", "y"), "--help"),
    (("encode", "/nowhere", "--input", "/nowhere", "--output", "/tmp/none.npy"), "cannot be read"),
    (("inspect", "/nowhere"), "/nowhere does not exist; make a bundle with"),
    (("export", "/nowhere", "--out", "/tmp/none.bundle"), "/nowhere does not exist"),
    (("export", ".", "--out", "/tmp/none.bundle"), "neither modules.json nor config.json"),
    (("export", ".", "--out", "/tmp/none.bundle", "--precision", "int4"), "precision int4 is unknown"),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str, cli: Cli) -> None:
    code, out, told = cli(*arguments)
    text = "".join(line for line in told.splitlines(True) if not line.startswith("["))  # progress
    assert (code, out, text.count("\n")) == (2, "", 1), text
    assert text.startswith("sentport: ")
    assert said in text


@pytest.mark.parametrize(("arguments", "said"), [MISTAKES[0], MISTAKES[-3]])
def test_a_process_of_its_own_says_no_more(arguments: tuple[str, ...], said: str) -> None:
    """What libraries print while they are imported would show here alone."""
    done = run_cli(*arguments)
    text = "".join(line for line in done.stderr.decode().splitlines(True) if not line.startswith("["))
    assert (done.returncode, done.stdout, text.count("\n")) == (2, b"", 1), text
    assert text.startswith("sentport: ")
    assert said in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_a_version(name: str, cli: Cli) -> None:
    code, text, _ = cli(name, "--help")
    assert (code, "example:\n  sentport " in text) == (0, True)
    assert cli(name, "--version")[1].startswith("sentport ")


def test_overview_lists_every_command() -> None:
    text = run_cli("--help", check=True).stdout.decode()
    assert all(f"  {name} " in text for name in COMMANDS)


def test_inspect_describes_and_json_is_the_description(tiny_bundle: Path, cli: Cli) -> None:
    code, text, _ = cli("inspect", str(tiny_bundle))
    assert code == 0
    assert "Dense (in 32, out 24, bias True, activation Tanh)" in text
    assert "max tokens      48 (" in text
    assert run_cli("inspect", str(tiny_bundle), "--json").stdout == (tiny_bundle / "bundle.json").read_bytes()


def test_what_the_output_cannot_encode_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "日本").mkdir()  # no config.pbtxt in it, which is a finding
    done = run_cli("lint", str(tmp_path), env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, rb"\u65e5\u672c/config.pbtxt" in done.stdout) == (1, True)


def test_closed_pipe_is_quiet(tiny_bundle: Path) -> None:
    command = f"{sys.executable} -m sentport inspect {tiny_bundle} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT)
    assert done.stderr == b""


def test_interrupt_ends_with_130_and_nothing_half_written(tiny_bundle: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sentport", "encode", tiny_bundle, "--input", "-", "--output", tmp_path / "v.npy"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    time.sleep(2)  # it waits for standard input by now
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_folder_that_shadows_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("print('not ours')")
    done = run_cli("--help", cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert done.returncode == 2
    assert done.stdout == b""
    assert f"the folder {tmp_path / 'training'} shadows sentport's own package" in done.stderr.decode()
    shutil.rmtree(tmp_path / "training")
    (tmp_path / "training").mkdir()  # without __init__.py it never wins over an installed package
    assert run_cli("--help", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}).returncode == 0


def test_bug_is_told_from_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sentport.cli import inspect, main

    def broken(_: object) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr(inspect, "run", broken)
    assert main(["inspect", "x"]) == 2
    assert "this is a bug in sentport: RuntimeError: boom" in capsys.readouterr().err
    with pytest.raises(RuntimeError):
        main(["inspect", "x", "-v"])
