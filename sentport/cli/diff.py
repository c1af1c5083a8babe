"""``sentport diff``."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sentport.cli.options import add_layout_argument

if TYPE_CHECKING:
    from sentport.bundle import ModelSpec
    from sentport.encoder import EncoderInfo, Vectors
    from sentport.evaluation.comparison import TextCosines
    from sentport.evaluation.neighbours import NeighbourChurn

DESCRIPTION = (
    "Compare two encoders: the same embedding space or not and why, the cosine of each text's two vectors, and how "
    "many nearest neighbours change. Exit code 0: same space and vectors agree; 1: not."
)
EXAMPLE = "sentport diff old.bundle new.bundle --corpus texts.txt"

_SHOWN_CHARACTERS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("a", metavar="A", help="bundle folder, or a checkpoint folder (engine torch)")
    parser.add_argument("b", metavar="B", help="what it is compared with")
    parser.add_argument("--corpus", metavar="FILE", help="UTF-8 text, one a line (default: the bundle's parity texts)")
    parser.add_argument("--min-cosine", type=float, default=0.9999, help="vectors agree from here up (default 0.9999)")
    parser.add_argument("--neighbours", type=int, default=10, metavar="K", help="neighbours of a text (default 10)")
    parser.add_argument(
        "--precision", nargs=2, default=["auto", "auto"], metavar=("OF_A", "OF_B"), help="default: auto auto"
    )
    add_layout_argument(parser, of_two=True)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, help="compute threads (default: the cores allowed)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


@dataclass(frozen=True)
class _Side:
    """One encoder with its vectors ``[texts, dim]``."""

    source: str
    graph: str
    spec: ModelSpec
    info: EncoderInfo
    vectors: Vectors
    truncated: list[int]


@dataclass(frozen=True)
class _Report:
    """What was found; ``cosines`` is None when the dims differ."""

    texts: list[str]
    origin: str
    sides: tuple[_Side, _Side]
    differences: list[str]
    cosines: TextCosines | None
    churn: NeighbourChurn
    agree: bool


def run(arguments: argparse.Namespace) -> int:
    """Encode the texts with both, compare and report."""
    report = _compare(arguments)
    if arguments.json:
        import json

        print(json.dumps(_as_json(report, arguments.min_cosine)))
    else:
        print("\n".join(_lines(report, arguments.min_cosine)))
    return 0 if report.agree and not report.differences else 1


def _compare(arguments: argparse.Namespace) -> _Report:
    from sentport.evaluation.comparison import space_differences, text_cosines
    from sentport.evaluation.neighbours import neighbour_churn

    _check(arguments)
    texts, origin = _texts(arguments)
    a, b = (
        _encode(source, layout, precision, texts, arguments)
        for source, layout, precision in zip(
            (arguments.a, arguments.b), arguments.layout, arguments.precision, strict=True
        )
    )
    cosines = text_cosines(a.vectors, b.vectors) if a.spec.dim == b.spec.dim else None
    return _Report(
        texts=texts,
        origin=origin,
        sides=(a, b),
        differences=space_differences(a.spec, b.spec),
        cosines=cosines,
        churn=neighbour_churn(a.vectors, b.vectors, arguments.neighbours),
        agree=cosines is not None and cosines.worst >= arguments.min_cosine,
    )


def _check(arguments: argparse.Namespace) -> None:
    from sentport.errors import SentportError

    if not -1 <= arguments.min_cosine <= 1:
        raise SentportError(f"--min-cosine is {arguments.min_cosine}; expected a cosine, from -1 to 1")
    if arguments.neighbours < 1:
        raise SentportError(f"--neighbours is {arguments.neighbours}; expected 1 or more")


def _texts(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """The distinct texts to compare over, and where they are from."""
    from pathlib import Path

    from sentport.bundle import is_bundle, read_bundle
    from sentport.errors import SentportError
    from sentport.inputs import read_lines
    from sentport.scheduler import unique_texts

    if arguments.corpus:
        texts, origin = read_lines(arguments.corpus), f"lines of {arguments.corpus}"
    else:
        bundle = next((source for source in (arguments.a, arguments.b) if is_bundle(Path(source))), None)
        if bundle is None:
            raise SentportError(
                f"neither {arguments.a} nor {arguments.b} is a bundle, which would bring texts; add --corpus FILE"
            )
        texts, origin = read_bundle(bundle).golden_texts(), f"parity texts of {bundle}"
    distinct, _ = unique_texts(texts)
    if len(distinct) < 2:
        raise SentportError(f"the {origin} hold {len(distinct)} distinct texts; expected 2 or more to compare over")
    return distinct, f"distinct {origin}"


def _encode(source: str, layout: str, precision: str, texts: list[str], arguments: argparse.Namespace) -> _Side:
    from sentport.encoder import Encoder
    from sentport.progress import Progress

    with Encoder(
        source,
        layout=layout,
        precision=precision,
        device=arguments.device,
        threads=arguments.threads,
        on_truncate="allow",
    ) as encoder:
        tokens = encoder.tokens(texts)
        with Progress("encoding", len(texts), "sentences", shown=not arguments.quiet) as bar:
            vectors = encoder.compute(tokens, done=bar.advance)
        truncated = (tokens.full_lengths > tokens.lengths).nonzero()[0].tolist()
        return _Side(source, _graph(source, encoder.info), encoder.spec, encoder.info, vectors, truncated)


def _graph(source: str, info: EncoderInfo) -> str:
    """Layout and precision, and for a bundle the flavour that its engine takes."""
    from pathlib import Path

    from sentport.bundle import is_bundle, read_bundle
    from sentport.engines import FLAVOURS
    from sentport.engines.opening import runnable

    if not is_bundle(Path(source)):
        return f"{info.layout}-{info.precision}"
    held = runnable(read_bundle(source), info.engine)
    graph = held.select(info.layout, info.precision, info.device, FLAVOURS[info.engine])
    return f"{graph.layout}-{graph.precision}-{graph.flavour}"


def _lines(report: _Report, least: float) -> list[str]:
    from sentport.inputs import counted

    rows = [(name, _side_line(side, len(report.texts))) for name, side in zip("AB", report.sides, strict=True)]
    rows.append(("texts", f"{len(report.texts)} {report.origin}, each under its model's default prompt"))
    rows.append(("same space", f"no, {counted(len(report.differences), 'part')}" if report.differences else "yes"))
    rows.extend(("", difference) for difference in report.differences)
    rows.extend(("cosine" if not n else "", line) for n, line in enumerate(_cosine_lines(report)))
    churn = report.churn
    kept = f"of the {churn.k} nearest, {churn.kept:.2%} stay"
    rows.append(("neighbours", f"{kept}; {churn.nearest_changed:.2%} of texts get another nearest one"))
    same = "another space" if report.differences else "same space"
    agree = "vectors agree" if report.agree else "vectors differ"
    rows.append(("verdict", f"{same}, {agree} (worst cosine from {least:g} up)"))
    return [f"{name:<11} {value}" for name, value in rows]


def _side_line(side: _Side, texts: int) -> str:
    info = side.info
    return (
        f"{side.source}: {side.spec.source}, {info.dim} dimensions, at most {info.max_tokens} tokens, {side.graph}, "
        f"engine {info.engine} on {info.device}, {info.sessions} x {info.threads} threads; "
        f"{len(side.truncated)} of {texts} texts truncated"
    )


def _cosine_lines(report: _Report) -> list[str]:
    cosines = report.cosines
    if cosines is None:
        a, b = (side.info.dim for side in report.sides)
        return [f"undefined between {a} and {b} dimensions"]
    summary = f"worst {cosines.worst:.7f}, mean {cosines.mean:.7f}, median {cosines.median:.7f} ({cosines.texts} texts)"
    worst = zip(cosines.worst_values, cosines.worst_rows, strict=True)
    return [summary, *(f"{value:.7f}  {_shown(report.texts[row])}" for value, row in worst)]


def _shown(text: str) -> str:
    """A text on one line of a terminal, whatever it holds."""
    start = ascii(text[:_SHOWN_CHARACTERS]) if not text.isprintable() else repr(text[:_SHOWN_CHARACTERS])
    return f"{start}…" if len(text) > _SHOWN_CHARACTERS else start


def _as_json(report: _Report, least: float) -> dict[str, Any]:
    cosines = report.cosines
    return {
        "same_space": not report.differences,
        "differences": report.differences,
        "agree": report.agree,
        "min_cosine": least,
        "texts": {"count": len(report.texts), "origin": report.origin},
        **{
            name: {
                "source": side.source,
                "model": side.spec.source,
                "graph": side.graph,
                **asdict(side.info),
                "truncated_rows": side.truncated,
            }
            for name, side in zip("ab", report.sides, strict=True)
        },
        "cosines": cosines and {**asdict(cosines), "worst_texts": [report.texts[row] for row in cosines.worst_rows]},
        "neighbours": asdict(report.churn),
    }
