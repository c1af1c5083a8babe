"""``sentport pairs``."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from sentport.cli.collection import add_vectors_arguments, load_vectors, one_line, say, tell_zeros
from sentport.cli.options import add_layout_argument, add_precision_argument, finite, whole

if TYPE_CHECKING:
    from sentport.search.collection import Collection
    from sentport.search.pairs import Pairs

DESCRIPTION = (
    "Find the most similar pairs among stored vectors, or among lines of text: exact, all pairs compared. "
    "One pair a line: score, id, id and, where known, both texts."
)
EXAMPLE = (
    "sentport pairs vectors.parquet --top 20 --min-score 0.8\n  sentport pairs minilm.bundle --input texts.txt --top 5"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vectors_arguments(parser)
    parser.add_argument("--top", metavar="N", type=whole(1), default=20, help="pairs to show (%(default)s)")
    parser.add_argument("--min-score", metavar="S", type=finite, help="leave out pairs that are less similar")
    parser.add_argument("--input", metavar="FILE", help="encode these lines first, with VECTORS a bundle; - = stdin")
    parser.add_argument(
        "--prompt", help='with --input: name of a saved prompt; "" = none (default: the default prompt)'
    )
    add_precision_argument(parser)
    add_layout_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the pairs as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Find and show them."""
    from sentport.inputs import counted
    from sentport.search.collection import limited_threads
    from sentport.search.pairs import similar_pairs

    with limited_threads(arguments.threads) as threads:
        if arguments.input:
            held, embedding = _encode(arguments)
        else:
            held, embedding = load_vectors(arguments)[0], None
        start = time.perf_counter()
        pairs = similar_pairs(held, arguments.top, arguments.min_score)
        searching = time.perf_counter() - start
    rows = len(held.vectors)
    compared = counted(rows * (rows - 1) // 2, "pair")
    before = "" if embedding is None else f"embedding {embedding:.3f} s, "
    say(
        arguments,
        f"{counted(rows, 'vector')}, {compared} by {held.similarity}: {before}search {searching:.3f} s, "
        f"{counted(threads, 'thread')}",
    )
    if arguments.json:
        seconds = {"embedding": embedding, "search": searching}
        found = [_as_json(held, pairs, place) for place in range(len(pairs.scores))]
        print(json.dumps({"vectors": rows, "similarity": held.similarity, "seconds": seconds, "pairs": found}))
        return 0
    for place in range(len(pairs.scores)):
        print(_line(held, pairs, place))
    return 0


def _encode(arguments: argparse.Namespace) -> tuple[Collection, float]:
    """The lines' vectors, and the seconds that tokenising and embedding took."""
    import numpy as np

    from sentport.encoder import Encoder
    from sentport.errors import SentportError
    from sentport.inputs import read_lines
    from sentport.search.collection import collection

    if arguments.texts:
        raise SentportError("--input holds the texts already; leave --texts out")
    texts = read_lines(arguments.input)
    with Encoder(
        arguments.vectors, layout=arguments.layout, precision=arguments.precision, threads=arguments.threads
    ) as encoder:
        start = time.perf_counter()
        vectors = encoder.encode(texts, prompt=arguments.prompt, progress=not arguments.quiet)
        seconds = time.perf_counter() - start
        held = collection(np.arange(len(texts)), vectors, texts, encoder.info.similarity)
    tell_zeros(arguments, held)
    return held, seconds


def _as_json(held: Collection, pairs: Pairs, place: int) -> dict[str, Any]:
    rows = pairs.rows[place]
    found = {"score": float(pairs.scores[place]), "ids": held.ids[rows].tolist()}
    return found if held.texts is None else {**found, "texts": [held.texts[row] for row in rows]}


def _line(held: Collection, pairs: Pairs, place: int) -> str:
    rows = pairs.rows[place]
    texts = [] if held.texts is None else [one_line(held.texts[row]) for row in rows]
    names = [one_line(str(held.ids[row])) for row in rows]
    return "\t".join([f"{pairs.scores[place]:.6f}", *names, *texts])
