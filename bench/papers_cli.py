"""``sentport bench table7``, ``pair-search`` and ``growth``: what the papers and long inputs ask for."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cli_checks import check_counts, check_finite, check_folder, numbers, say_of
from sentport.cli.steps import Steps, add_step

_TABLE7_EXAMPLE = "sentport bench table7 --out bench-out"
_PAIRS_EXAMPLE = "sentport bench pair-search --bundle minilm.bundle --out bench-out"
_GROWTH_EXAMPLE = "sentport bench growth --bundle minilm.bundle --out bench-out"


def add(steps: Steps[argparse.ArgumentParser]) -> None:
    """Declare the three steps."""
    table7 = add_step(steps, "table7", "the encoders of Sentence-BERT's table 7, timed", _TABLE7_EXAMPLE, _table7)
    _add_common(table7)
    _add_bert(table7)
    table7.add_argument("--texts", metavar="N", type=int, help="sentences (384 on a CPU, all on a GPU)")
    table7.add_argument("--repeats", metavar="N", type=int, default=5, help="rounds (%(default)s)")

    pairs = add_step(steps, "pair-search", "the most similar of 10,000 sentences, by two ways", _PAIRS_EXAMPLE, _pairs)
    _add_common(pairs)
    _add_bert(pairs)
    pairs.add_argument("--bundle", metavar="BUNDLE", type=Path, help="a real encoder, timed too")
    pairs.add_argument("--texts", metavar="N", type=int, default=10_000, help="sentences (%(default)s)")
    pairs.add_argument("--pairs", metavar="N", type=int, default=256, help="that the cross-encoder reads (%(default)s)")
    pairs.add_argument(
        "--encoded", metavar="N", type=int, help="sentences that SBERT-base reads; fewer than all are extrapolated"
    )

    growth = add_step(steps, "growth", "seconds and memory of 16 to 1,000,000 texts", _GROWTH_EXAMPLE, _growth)
    _add_common(growth)
    growth.add_argument("--bundle", metavar="BUNDLE", type=Path, required=True, help="the encoder")
    growth.add_argument("--precision", default="auto", help="of its graph (%(default)s)")
    growth.add_argument("--layout", default="auto", help="of its graph (%(default)s)")
    growth.add_argument("--sizes", metavar="N,N", type=numbers, help="numbers of texts (16 to 1,000,000 by tens)")
    growth.add_argument(
        "--seconds", type=float, default=600.0, help="a size that would take longer is left out (%(default)s)"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the raw file")
    parser.add_argument("--threads", metavar="N", type=int, help="compute threads (default: the cores allowed)")


def _add_bert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the BERT models (%(default)s)")
    parser.add_argument("--corpus", metavar="NAME", help="a recipe or a file, one sentence a line")
    parser.add_argument(
        "--tokenizer", metavar="FILE", type=Path, help="tokenizer.json of an uncased BERT (default: the demo model's)"
    )


def _checked(arguments: argparse.Namespace, *counts: str) -> int:
    """The threads, once numbers and folder have been looked at."""
    from sentport.hardware import available_cores

    for name in ("threads", *counts):
        check_counts(name, getattr(arguments, name))
    check_folder(arguments.out)
    return arguments.threads or available_cores()


def _tokenizer(arguments: argparse.Namespace) -> Path:
    from bench.models import packaged_model

    file: Path = arguments.tokenizer or packaged_model() / "tokenizer.json"
    return file


def _table7(arguments: argparse.Namespace) -> int:
    threads = _checked(arguments, "texts", "repeats")
    from bench.recipes import corpus_of
    from bench.table7 import TEXTS, Table7, measure

    corpus = corpus_of(arguments.corpus or "any").sample(arguments.texts or TEXTS[arguments.device], 5)
    options = Table7(corpus, _tokenizer(arguments), arguments.device, threads, arguments.repeats)
    _show(measure(options, arguments.out, say_of(arguments)))
    return 0


def _pairs(arguments: argparse.Namespace) -> int:
    threads = _checked(arguments, "pairs")
    for name in ("texts", "encoded"):
        check_counts(name, getattr(arguments, name), least=2)
    from bench.pair_search import PairSearch, measure
    from bench.recipes import corpus_of

    corpus = corpus_of(arguments.corpus or "pool").sample(arguments.texts, 5)
    encoded = min(arguments.encoded or len(corpus.texts), len(corpus.texts))
    options = PairSearch(
        corpus, _tokenizer(arguments), arguments.bundle, arguments.device, threads, arguments.pairs, encoded
    )
    _show(measure(options, arguments.out, say_of(arguments)))
    return 0


def _growth(arguments: argparse.Namespace) -> int:
    threads = _checked(arguments, "sizes")
    check_finite("seconds", arguments.seconds)
    from bench.growth import SIZES, Growth, measure

    sizes = tuple(arguments.sizes or SIZES)
    options = Growth(arguments.bundle, threads, arguments.precision, arguments.layout, sizes, arguments.seconds)
    _show(measure(options, arguments.out, say_of(arguments)))
    return 0


def _show(raw: Path) -> None:
    """The tables of a raw file, then its path."""
    from bench.all_boards import all_boards
    from bench.records import read_records
    from bench.report import render_board

    for board in all_boards(read_records([raw])):
        print(f"{board.title}\n{render_board(board)}\n")
    print(f"raw      {raw}")
