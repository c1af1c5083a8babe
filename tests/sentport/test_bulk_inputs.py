"""Texts from every kind of file, bad rows told by place, reading from any place on."""

from __future__ import annotations

import bz2
import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sentport.bulk.inputs import Inputs, Mark, find_inputs
from sentport.errors import InputError, SentportError
from sentport.inputs import valid_rows

TEXTS = ["the cat", "", 'a "dog", sat', "two\nlines", "日本", "last"]


def write(folder: Path, kind: str) -> Path:
    """The texts under ``text``, ids 10 to 15, between columns that nobody asks for."""
    path = folder / f"texts.{kind}"
    rows = [{"n": 1.5, "text": text, "key": 10 + number, "last": None} for number, text in enumerate(TEXTS)]
    if kind == "csv":
        quoted = [f'1.5,"{text.replace(chr(34), chr(34) * 2)}",{10 + number},' for number, text in enumerate(TEXTS)]
        path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(["n,text,key,last", *quoted]).encode())
    elif kind == "jsonl":
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)
    else:
        path.write_text("\n".join(TEXTS).replace("two\n", "two "))
    return path


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl", "parquet"])
def test_rows_of_every_format_from_every_place(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind)
    inputs = find_inputs([str(path), str(path)], id_column=None if kind == "txt" else "key")
    rows = list(inputs.rows())
    wanted = [text.replace("\n", " ") if kind == "txt" else text for text in TEXTS]
    assert [row.text for row in rows] == wanted * 2
    assert [row.reason for row in rows] == [None] * 12
    ids = {"txt": [None] * 6, "parquet": [*range(10, 16)]}.get(kind, [str(n) for n in range(10, 16)])
    assert [row.id for row in rows] == ids * 2
    for place, row in enumerate(rows):
        assert list(inputs.rows(Mark(row.file, row.end, row.line))) == rows[place + 1 :]
    weights = inputs.weights()
    assert weights is not None
    assert [rows[5].end, rows[11].end] == [end for _, end in weights]


def bad(inputs: Inputs) -> dict[int, str]:
    """Line and reason of the bad rows; the good ones must be there."""
    rows = list(inputs.rows())
    assert [row.text for row in rows if row.reason is None] == ["fine", "good"]
    return {row.line: row.reason for row in rows if row.reason is not None}


def test_bad_rows_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe\ngood\n")
    assert bad(find_inputs([str(tmp_path / "a.txt")])) == {2: "invalid UTF-8"}
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,fine\n2,\xff\n3\n\n4,good\n")
    assert bad(find_inputs([str(tmp_path / "a.csv")])) == {3: "invalid UTF-8", 4: "null"}
    (tmp_path / "cut.csv").write_text('id,text\n1,fine\n2,cut, here\n3,good\n4,"open\n5,lost\n')
    assert bad(find_inputs([str(tmp_path / "cut.csv")])) == {
        **{3: "3 fields, the header has 2", 6: "not CSV from line 5 on: unexpected end of data"}
    }
    lines = ['{"text":"fine"}', "{", "[1]", '{"text":null}', '{"text":7}', r'{"text":"\ud800"}', '{"text":"good"}']
    (tmp_path / "a.jsonl").write_bytes("\n".join(lines).encode() + b'\n{"text":"\xff"}')
    assert bad(find_inputs([str(tmp_path / "a.jsonl")])) == {
        **{2: "not JSON", 3: "list, not an object", 4: "null", 5: "int, not text", 6: "lone surrogate"},
        8: "invalid UTF-8",
    }
    texts = pa.array([b"fine", None, b"\xff", b"good"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert bad(find_inputs([str(tmp_path / "a.parquet")])) == {2: "null", 3: "invalid UTF-8"}
    (tmp_path / "ids.jsonl").write_text('{"text":"fine","id":1}\n{"text":"x"}\n{"text":"good","id":"b"}\n')
    assert "id is null" in bad(find_inputs([str(tmp_path / "ids.jsonl")], id_column="id"))[2]


def test_ids_that_cannot_be_stored_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,fine\n\xff,x\n3,good\n")
    assert bad(find_inputs([str(tmp_path / "a.csv")], id_column="id")) == {3: "id is invalid UTF-8"}
    (tmp_path / "a.jsonl").write_text(
        '{"text":"fine","id":1}\n{"text":"x","id":"\\ud800"}\n{"text":"x","id":true}\n{"text":"good","id":"b"}\n'
    )
    assert bad(find_inputs([str(tmp_path / "a.jsonl")], id_column="id")) == {
        **{2: "id is lone surrogate", 3: "id is bool, not text or integer"}
    }
    texts = ["fine", "x", "good"]
    for ids, reason in (
        (pa.array([2**63 - 1, 2**63, 3], pa.uint64()), "id is over 9,223,372,036,854,775,807"),
        (pa.array([b"1", b"\xff", b"3"], pa.binary()).view(pa.string()), "id is invalid UTF-8"),
    ):
        pq.write_table(pa.table({"text": texts, "id": ids}), tmp_path / "a.parquet")
        assert bad(find_inputs([str(tmp_path / "a.parquet")], id_column="id")) == {2: reason}


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl"])
def test_a_text_of_any_length_takes_bounded_memory(kind: str, tmp_path: Path) -> None:
    for long in ("x" * 1_000_001, "\ufeff" + "x" * 1_000_001, "x" * 30_000_000):
        texts = [long, "fine", "good"]
        path = tmp_path / f"a.{kind}"
        lines = [json.dumps({"text": text}) for text in texts] if kind == "jsonl" else texts
        path.write_text("\n".join([*(["text"] if kind == "csv" else []), *lines]))
        tracemalloc.start()
        assert bad(find_inputs([str(path)])) == {1 + (kind == "csv"): "over 1,000,000 bytes"}
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert kind != "txt" or peak < 5_000_000  # by columns, a line is read whole, but not tokenised
    with pytest.raises(InputError, match=r"1 of 2 rows cannot be encoded: rows 1 \(over 1,000,000 bytes\)"):
        valid_rows(["日" * 333_333, "日" * 333_334])


def test_names_and_patterns(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt", "[x].txt"):
        (tmp_path / name).write_text("text\nthe cat\n")
    found = find_inputs([str(tmp_path / "[x].txt"), str(tmp_path / "*.csv")])
    assert [Path(name).name for name in found.files] == ["[x].txt", "a.csv", "b.csv"]
    assert found.formats == ("lines", "csv", "csv")


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["none*.txt"], {}, "no file matches"),
        (["none.txt"], {}, "none.txt cannot be read (No such file or directory)"),
        ([""], {}, "cannot be read (Is a directory)"),
        (["a.txt"], {"column": "text"}, "is plain lines and has no columns"),
        (["-"], {"kind": "parquet"}, "Parquet cannot be read from standard input"),
        (["a.csv"], {"column": "body"}, "a.csv has no column 'body'; it has text, n"),
        (["a.parquet"], {"column": "body"}, "a.parquet has no column 'body'; it has n, words"),
        (["a.parquet"], {"column": "n"}, "column 'n' of"),
        (["a.parquet"], {"column": "words", "id_column": "words"}, None),
        (["not.parquet"], {}, "not.parquet cannot be read as Parquet"),
        (["a.jsonl"], {"column": "body"}, "a.jsonl has no column 'body'; it has text"),
        (["empty.csv"], {}, "empty.csv has no column 'text'; it has none"),
        (["mac.csv"], {}, "mac.csv does not begin as CSV does"),
        (["twice.csv"], {}, "twice.csv has 2 columns named 'text'; rename all but one"),
        (["twice.parquet"], {"id_column": "n"}, "twice.parquet has 2 columns named 'n'; rename all but one"),
        (["a.txt.gz"], {}, "a.txt.gz is gzip, not text; unpack it first"),
        (["a.csv.bz2"], {}, "a.csv.bz2 is bzip2, not text; unpack it first"),
        (["a.parq"], {}, "a.parq is Parquet, not text; name it with --format parquet"),
    ],
)
def test_what_cannot_be_read(names: list[str], options: dict[str, str], said: str | None, tmp_path: Path) -> None:
    for name in ("a.txt", "a.csv", "not.parquet"):
        (tmp_path / name).write_text("text,n\na,1\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "twice.csv").write_text("text,n,text\na,1,b\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"the cat\n"))
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(b"text\nthe cat\n"))
    pq.write_table(pa.table([["a"], [1], [2]], ["text", "n", "n"]), tmp_path / "twice.parquet")
    (tmp_path / "a.parq").write_bytes((tmp_path / "twice.parquet").read_bytes())
    (tmp_path / "mac.csv").write_bytes(b"text,n\ra,1\r")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    pq.write_table(pa.table({"n": [1, 2], "words": pa.array(["a", "b"]).dictionary_encode()}), tmp_path / "a.parquet")
    places = [name if name == "-" else str(tmp_path / name) for name in names]
    if said is None:
        assert [row.id for row in find_inputs(places, **options).rows()] == ["a", "b"]
        return
    with pytest.raises(SentportError) as raised:
        list(find_inputs(places, **options).rows())
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
