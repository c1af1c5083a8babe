"""Files of texts that int8 is calibrated and judged on: what is taken of them, and which cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.calibration import calibration_texts, sample_texts
from sentport.errors import SentportError

LINES = [f"the cat sat on mat {n}" for n in range(40)]


def test_different_lines_are_taken_as_encode_reads_them(tmp_path: Path) -> None:
    """A byte order mark, Windows' ends of lines, empty lines, lines twice, no end of the last line."""
    file = tmp_path / "texts.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*LINES, "", "  ", LINES[3], "é"]).encode())
    assert calibration_texts(file) == ([*LINES, "é"], "texts.txt")
    assert sample_texts(file, "the gate's corpus", 20) == LINES[:20]


def test_no_more_of_a_file_is_read_than_is_taken(tmp_path: Path) -> None:
    """What cannot be read as text stands behind the lines that count."""
    file = tmp_path / "texts.txt"
    file.write_bytes("\n".join(LINES).encode() + b"\n\xff\n")
    assert sample_texts(file, "calibration", len(LINES)) == LINES
    with pytest.raises(SentportError, match=r"line 41 of .*texts\.txt is not UTF-8; convert it first"):
        sample_texts(file, "calibration", len(LINES) + 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has 0 texts; calibration needs at least 16, one a line, better 256"),
        (b"one line", "has 1 text; calibration needs at least 16"),
        (b"the same\n" * 300, "has 1 text; calibration needs"),
        (b" \n\t\n\n" * 100, "has 0 texts; calibration needs"),
        (b"\x80\x02\x00\n" * 100, "line 1 of .* is not UTF-8"),
        (b"fine\n" * 20 + "café\n".encode("latin-1"), "line 21 of .* is not UTF-8"),
        (b"fine\n" + b"word " * 200_001, "line 2 of .* is over 1,000,000 bytes; expected texts, one a line"),
        (b"\0" * 3_000_000, "line 1 of .* is over 1,000,000 bytes"),
    ],
    ids=["empty", "one", "same", "blank", "binary", "latin-1", "long", "zeros"],
)
def test_files_that_cannot_be_used_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(SentportError, match=said):
        calibration_texts(tmp_path / "texts.txt")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for name, said in (("missing.txt", "No such file"), (".", "Is a directory")):
        with pytest.raises(SentportError, match=f"cannot be read \\({said}.*expected a text file"):
            calibration_texts(tmp_path / name)
