"""Texts from every kind of file, bad rows told by place, reading from any place on."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sentport.bulk.inputs import Inputs, Mark, find_inputs
from sentport.errors import SentportError

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
    ],
)
def test_what_cannot_be_read(names: list[str], options: dict[str, str], said: str | None, tmp_path: Path) -> None:
    for name in ("a.txt", "a.csv", "not.parquet"):
        (tmp_path / name).write_text("text,n\na,1\n")
    (tmp_path / "empty.csv").touch()
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
