"""Rows to examples: every format, from files and from the hub's library; bad rows are counted and named by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.data import Example, data_hash, read_data
from training.settings import Data, Format
from training.tables import RecipeError


def read(folder: Path, format_: Format, lines: str | bytes, *, contrastive: bool = False, **settings: object):  # noqa: ANN201
    (folder / "x.tsv").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    (source,) = read_data([Data(format_, files=("x.tsv",), **settings)], folder, contrastive=contrastive)  # type: ignore[arg-type]
    return source


@pytest.mark.parametrize(
    ("format_", "line", "example"),
    [
        (Format.STS, "2.5\ta cat\ta dog", Example(("a cat", "a dog"), 0.5)),
        (Format.NLI, "contradiction\ta cat\ta dog", Example(("a cat", "a dog"), 2)),
        (Format.TRIPLETS, "a\tb\tc", Example(("a", "b", "c"))),
        (Format.TRIPLETS, "a\tb\tc\tsnli/dev", Example(("a", "b", "c"))),
        (Format.PAIRS, " a \tb", Example(("a", "b"))),
        (Format.PAIRS, "a\tb\tc\tsnli/dev", Example(("a", "b"))),
        (Format.SENTENCES, "日本 a", Example(("日本 a",))),
    ],
)
def test_formats(format_: Format, line: str, example: Example, tmp_path: Path) -> None:
    assert read(tmp_path, format_, f"{line}\n").examples == [example]


def test_groups_are_disjoint_pairs_whatever_stands_before(tmp_path: Path) -> None:
    group = "a\tb\tc\td\te"
    pairs = read(tmp_path, Format.GROUPS, f"{group}\n").examples
    assert len(pairs) == 2
    assert len({text for pair in pairs for text in pair.texts}) == 4
    assert read(tmp_path, Format.GROUPS, f"x\ty\n{group}\n").examples[1:] == pairs


def test_score_range(tmp_path: Path) -> None:
    source = read(tmp_path, Format.STS, "1\ta\tb\n5\ta\tb\n0\ta\tb\n", score_range=(1.0, 5.0))
    assert [example.target for example in source.examples] == [0.0, 1.0]
    assert source.bad == [(3, "score 0 is not from 1 to 5")]


def test_bad_rows_are_named_by_line(tmp_path: Path) -> None:
    good = b"3\ta cat\ta dog\n"
    bad = [b"3\ta cat\n", b"x\ta\tb\n", b"nan\ta\tb\n", b"9\ta\tb\n", b"1\t\tb\n", b"1\ta\t\xff\n", b"\n"]
    source = read(tmp_path, Format.STS, good + b"".join(bad) + good)
    assert (source.rows, len(source.examples)) == (9, 2)
    assert [line for line, _ in source.bad] == [2, 3, 4, 5, 6, 7, 8]
    reasons = [
        "2 columns, expected 3",
        "score 'x'",
        "score nan",
        "score 9",
        "text 1 is empty",
        "lone surrogate",
        "1 columns",
    ]
    assert all(reason in found for reason, (_, found) in zip(reasons, source.bad, strict=True))
    report = source.report()
    assert report.startswith("x.tsv: 2 examples of 9 rows; 7 bad: line 2 (2 columns, expected 3), line 3")
    assert report.endswith("and 2 more")


def test_nli_of_one_premise_becomes_pairs_with_hard_negatives(tmp_path: Path) -> None:
    lines = "".join(
        f"{label}\t{premise}\t{label[0]} of {premise}\n"
        for premise, labels in {
            "p": ("entailment", "contradiction", "neutral"),
            "q": ("entailment", "contradiction"),
            "r": ("neutral",),
        }.items()
        for label in labels
    )
    pairs = read(tmp_path, Format.NLI, lines, contrastive=True)
    assert [example.texts for example in pairs.examples] == [("p", "e of p"), ("q", "e of q")]
    hard = read(tmp_path, Format.NLI, lines, contrastive=True, hard_negatives=("contradiction",))
    assert [example.texts for example in hard.examples] == [("p", "e of p", "c of p"), ("q", "e of q", "c of q")]
    both = read(tmp_path, Format.NLI, lines, contrastive=True, hard_negatives=("contradiction", "neutral"))
    assert [example.texts for example in both.examples] == [("p", "e of p", "c of p", "n of p")]
    assert both.unused == 5
    assert "5 rows make none" in both.report()


def test_rows_limit_and_hash(tmp_path: Path) -> None:
    lines = "a\nb\nc\n"
    first = read(tmp_path, Format.SENTENCES, lines, rows=2)
    assert [example.texts for example in first.examples] == [("a",), ("b",)]
    whole = read(tmp_path, Format.SENTENCES, lines)
    assert data_hash([first]) != data_hash([whole])
    assert data_hash([whole]) == data_hash([read(tmp_path, Format.SENTENCES, lines)])


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"x.tsv: 0 examples of 1 rows; 1 bad: line 1 .*expected rows of format sts"):
        read(tmp_path, Format.STS, "a\tb\n")
    with pytest.raises(RecipeError, match=r"no\.tsv does not exist; --data names the folder"):
        read_data([Data(Format.STS, files=("no.tsv",))], tmp_path, contrastive=False)
    (tmp_path / "y.tsv").write_text("a\tb\tc\n")
    (tmp_path / "x.tsv").write_text("a\tb\n")
    mixed = [Data(Format.PAIRS, files=("x.tsv",)), Data(Format.TRIPLETS, files=("y.tsv",))]
    with pytest.raises(RecipeError, match=r"differ in the number of texts of an example \(x.tsv 2, y.tsv 3\)"):
        read_data(mixed, tmp_path, contrastive=True)


def test_the_hub_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for a data set of the hub: ``datasets`` reads both in one way."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    lines = [
        ("premise", "hypothesis", "label"),
        ("a cat", "an animal", 0),
        ("a dog", "a cat", 2),
        ("x", "y", -1),
        ("z", "", 0),
    ]
    (folder / "train.csv").write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    settings = Data(Format.NLI, hub=str(folder), fields=("label", "premise", "hypothesis"))
    (source,) = read_data([settings], tmp_path, contrastive=False)
    assert source.examples == [Example(("a cat", "an animal"), 0), Example(("a dog", "a cat"), 2)]
    assert [line for line, _ in source.bad] == [3, 4]
    wrong = Data(Format.NLI, hub=str(folder), fields=("lable", "premise", "hypothesis"))
    with pytest.raises(RecipeError, match="has no field lable; it has premise, hypothesis, label"):
        read_data([wrong], tmp_path, contrastive=False)
    nowhere = Data(Format.NLI, hub=str(tmp_path / "nothing"), fields=("label", "premise", "hypothesis"))
    with pytest.raises(RecipeError, match="nothing cannot be read") as error:
        read_data([nowhere], tmp_path, contrastive=False)
    assert "\n" not in str(error.value)
