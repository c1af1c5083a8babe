"""``sentport search``: build an index once, query it."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentport.cli.collection import (
    add_threads_argument,
    add_vectors_arguments,
    check_output,
    load_vectors,
    one_line,
    say,
)
from sentport.cli.options import add_layout_argument, whole
from sentport.cli.steps import add_step, add_steps, run_step

if TYPE_CHECKING:
    import numpy as np

    from sentport.search.index import Index

DESCRIPTION = "Search stored vectors by text: build an index once, query it as often as wanted."
EXAMPLE = (
    "sentport search build vectors.parquet --out my.index --kind hnsw\n"
    '  sentport search query my.index --model minilm.bundle "a man is eating" --top 5'
)

_PARAMETERS = ("nlist", "m", "nprobe", "ef_construction", "ef_search")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two steps and their options."""
    steps = add_steps(parser, "build|query")
    _add_build(add_step(steps, "build", "make an index of stored vectors", EXAMPLE, build))
    says = "find what is nearest to texts: number of the query, score, id and, where known, text"
    _add_query(add_step(steps, "query", says, EXAMPLE, query))


def run(arguments: argparse.Namespace) -> int:
    """Do the step asked for."""
    from sentport.search.collection import limited_threads

    with limited_threads(arguments.threads):
        return run_step(arguments)


def build(arguments: argparse.Namespace) -> int:
    """Build, measure recall and write."""
    from sentport.inputs import counted
    from sentport.progress import Progress
    from sentport.search.collection import limited_threads
    from sentport.search.index import (
        IndexManifest,
        build_index,
        index_parameters,
        is_index,
        recall_at_10,
        write_index,
    )

    check_output(arguments.out, arguments.force, replaceable=is_index(arguments.out))
    held, vectors = load_vectors(arguments)
    rows, dim = held.vectors.shape
    kind, seed = arguments.kind, arguments.seed
    parameters = index_parameters(kind, rows, dim, {name: getattr(arguments, name) for name in _PARAMETERS})
    start = time.perf_counter()
    # Threads race for places in an HNSW graph: one alone makes the same graph again.
    one_thread = kind == "hnsw" and arguments.threads is None
    progress = Progress("indexing", rows, "vectors", shown=not arguments.quiet)
    with limited_threads(1 if one_thread else arguments.threads), progress:
        index = build_index(held, kind, parameters, seed, progress.advance)
    seconds = time.perf_counter() - start
    recall = None if kind == "flat" else recall_at_10(index, held, seed)
    write_index(arguments.out, index, held, IndexManifest(kind, parameters, recall, vectors))
    report = {
        "index": str(arguments.out),
        "kind": kind,
        "parameters": parameters,
        "rows": rows,
        "seconds": seconds,
        "recall_at_10": recall,
    }
    if arguments.json:
        print(json.dumps(report))
    words = ", ".join([kind, *(f"{name} {value}" for name, value in parameters.items())])
    found = "" if recall is None else f"; recall@10 {recall:.4f} against flat, over a sample of the vectors"
    held_rows = counted(rows, "vector")
    say(arguments, f"{held_rows} of {dim} in {arguments.out} ({words}): built in {seconds:.1f} s{found}")
    return 0


def query(arguments: argparse.Namespace) -> int:
    """Encode the queries, search and show."""
    from dataclasses import replace

    from sentport.bulk.manifest import refuse_mix
    from sentport.encoder import Encoder
    from sentport.inputs import counted
    from sentport.search.index import read_index

    index = read_index(arguments.index)
    stored = index.manifest.vectors
    texts = _queries(arguments)
    precision = stored.precision if arguments.precision is None else arguments.precision
    with Encoder(arguments.model, layout=arguments.layout, precision=precision, threads=arguments.threads) as encoder:
        info = encoder.info
        # Vectors cut to their first values are compared with queries that are cut too.
        refuse_mix(stored, replace(info, dim=min(info.dim, stored.dim)), (arguments.index, arguments.model))
        start = time.perf_counter()
        vectors = encoder.encode(texts, prompt=arguments.prompt, dim=stored.dim)  # [queries, dim]
        embedded = time.perf_counter()
        scores, rows = index.search(vectors, arguments.top, arguments.effort)
        searched = time.perf_counter()
    times = {"embedding": 1000 * (embedded - start) / len(texts), "search": 1000 * (searched - embedded) / len(texts)}
    together = "" if len(texts) == 1 else f" each, {len(texts)} queries at once"
    say(
        arguments,
        f"{counted(len(index.ids), 'vector')} ({index.manifest.kind}, stored as {stored.stored}): tokenise + embed "
        f"{times['embedding']:.2f} ms, search {times['search']:.2f} ms{together}",
    )
    hits = [_hits(index, *found) for found in zip(scores, rows, strict=True)]
    if arguments.json:
        results = [{"query": text, "hits": found} for text, found in zip(texts, hits, strict=True)]
        print(json.dumps({"similarity": stored.similarity, "milliseconds_a_query": times, "results": results}))
        return 0
    for number, found in enumerate(hits):
        for hit in found:
            fields = [str(number), f"{hit['score']:.6f}", one_line(str(hit["id"]))]
            print("\t".join(fields + ([one_line(hit["text"])] if "text" in hit else [])))
    return 0


def _queries(arguments: argparse.Namespace) -> list[str]:
    from sentport.errors import SentportError
    from sentport.inputs import read_lines

    if bool(arguments.texts) == bool(arguments.input):
        raise SentportError('expected queries either as arguments, "like this", or with --input FILE')
    texts: list[str] = arguments.texts or read_lines(arguments.input)
    if not texts:
        raise SentportError(f"{arguments.input} holds no lines; expected one query a line")
    return texts


def _hits(index: Index, scores: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """One query's results; fewer than asked for where the index found no more."""
    hits = []
    for score, row in zip(scores.tolist(), rows.tolist(), strict=True):
        if row >= 0:
            hit = {"score": score, "id": index.ids[row]}
            hits.append(hit if index.texts is None else {**hit, "text": index.texts[row]})
    return hits


def _add_build(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_vectors_arguments(parser)
    add("--out", metavar="INDEX", type=Path, required=True, help="folder to make")
    add("--kind", default="flat", help="flat (exact), hnsw (fast) or ivfpq (small; 9,984 rows or more) (%(default)s)")
    add("--nlist", metavar="N", type=whole(1), help="ivfpq: lists (default: by the number of rows)")
    add("--m", metavar="N", type=whole(1), help="ivfpq: bytes a vector (by the width); hnsw: links of one, from 2 (32)")
    add("--nprobe", metavar="N", type=whole(1), help="ivfpq: lists that a query looks into (default: a 16th)")
    add("--ef-construction", metavar="N", type=whole(1), help="hnsw: candidates while building (80)")
    add("--ef-search", metavar="N", type=whole(1), help="hnsw: candidates of a query (64)")
    add("--seed", metavar="N", type=whole(0), default=0, help="of all draws; hnsw repeats unless --threads is set (0)")
    add("--force", action="store_true", help="replace an index that exists")
    add("--json", action="store_true", help="print what was built as JSON")


def _add_query(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _take_late_texts(parser)
    add("index", metavar="INDEX", help="folder that `sentport search build` made")
    add("texts", metavar="TEXT", nargs="*", help="queries")
    add("--model", metavar="BUNDLE", required=True, help="the model that made the vectors")
    add("--input", metavar="FILE", help="queries, one a line; - = standard input")
    add("--top", metavar="K", type=whole(1), default=10, help="results of each query (%(default)s)")
    add("--effort", metavar="N", type=whole(1), help="ef-search or nprobe of these queries (default: as built)")
    add("--prompt", help='name of a saved prompt; "" = none (default: the default prompt)')
    add("--precision", help="refused unless the vectors were made in it (default: theirs)")
    add_layout_argument(parser)
    add_threads_argument(parser)
    add("--json", action="store_true", help="print the results as JSON")


def _take_late_texts(parser: argparse.ArgumentParser) -> None:
    """Take texts after options too: argparse of Python 3.11 gives the positional ``*`` only those next to INDEX."""
    parse = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, late = parse(args, namespace)
        if any(word.startswith("-") for word in late):
            return found, late
        found.texts = [*found.texts, *late]
        return found, []

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]
