"""``python -m bench.search --bundle B``: milliseconds of searches over 100,000 vectors, one query at a time.

The sentences are distinct ones of the STS tasks and of image captions; embedding and search are timed apart. One JSON
record goes to stdout, with the conditions that its figures depend on; progress goes to stderr. The most similar pair
and clusters are ``sentport bench pair-search``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.corpus import DATA_VARIABLE
from bench.records import Record, run_conditions
from sentport.encoder import Encoder, Vectors
from sentport.errors import SentportError
from sentport.evaluation.sts import read_sts_task
from sentport.inputs import read_lines
from sentport.search.collection import Collection, collection, limited_threads, query_vectors
from sentport.search.index import KINDS, Rows, build_index, index_parameters, recall_at_10, share_found

T = TypeVar("T")

_STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark")
_QUERIES = 200


def main(argv: list[str] | None = None) -> int:
    """Measure and print the record."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--bundle", required=True, help="bundle, such as all-MiniLM-L6-v2's")
    add("--data", type=Path, default=os.environ.get(DATA_VARIABLE), help=f"evaluation data (default: ${DATA_VARIABLE})")
    add("--rows", type=int, default=100_000, help="vectors to search over (%(default)s)")
    add("--threads", type=int, help="compute threads (default: the cores allowed)")
    add("--seed", type=int, default=5, help="of all draws (%(default)s)")
    options = parser.parse_args(argv)
    try:
        print(json.dumps(measure(options), ensure_ascii=False))
    except SentportError as error:
        print(f"bench.search: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def measure(options: argparse.Namespace) -> Record:
    """Everything that is measured, as one record."""
    if options.data is None:
        raise SentportError(f"name the evaluation data with --data, or in {DATA_VARIABLE}")
    texts = sentences(options.data)
    if len(texts) < options.rows + _QUERIES:
        raise SentportError(f"{options.data} holds {len(texts)} sentences; expected {options.rows + _QUERIES} or more")
    drawn = random.Random(options.seed).sample(texts, options.rows + _QUERIES)
    some, queries = drawn[: options.rows], drawn[options.rows :]
    with limited_threads(options.threads) as threads, Encoder(options.bundle, threads=threads) as encoder:
        encoder.encode(queries[:64])  # warm-up
        vectors, embedding = _timed("embedding", lambda: encoder.encode(some))
        similarity = encoder.info.similarity
        held = collection(np.arange(len(vectors)), vectors, some, similarity)
        return {
            **run_conditions(),
            "search_versions": {name: metadata.version(name) for name in ("faiss-cpu",)},
            "encoder": asdict(encoder.info),
            "threads": threads,
            "sentences": f"{len(texts)} distinct ones of STS tasks and captions, drawn with seed {options.seed}",
            "embedding_seconds": embedding,
            "query_embedding_ms": _each(queries, lambda text: encoder.encode([text])),
            "search": _searches(held, query_vectors(encoder.encode(queries), similarity), options.seed),
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def sentences(data: Path) -> list[str]:
    """Distinct sentences of the STS tasks and of both caption sets."""
    found: dict[str, None] = {}
    for task in _STS_TASKS:
        for pairs in read_sts_task(data, task).values():
            found |= dict.fromkeys((*pairs.sentences1, *pairs.sentences2))
    for file in ("flickr8k_groups.tsv", "flickr30k_groups.tsv"):
        for group in read_lines(str(data / "captions" / file)):
            found |= dict.fromkeys(group.split("\t"))
    return [text for text in found if text.strip()]


def _searches(held: Collection, ready: Vectors, seed: int) -> list[Record]:
    """One record a kind, for queries ``[Q, dim]``."""
    truth = build_index(held, "flat", {}).search(ready, 10)[1]  # [Q, 10]
    return [_search(held, ready, truth, kind, seed) for kind in KINDS]


def _search(held: Collection, ready: Vectors, truth: Rows, kind: str, seed: int) -> Record:
    """Build, then search with one query at a time; recall twice: over its own vectors, and over the queries."""
    parameters = index_parameters(kind, *held.vectors.shape)
    index, seconds = _timed(f"building {kind}", lambda: build_index(held, kind, parameters, seed))
    latency = _each(ready, lambda vector: index.search(vector[None], 10))
    recall = share_found(held, ready, list(truth), list(index.search(ready, 10)[1]))
    return {
        "kind": kind,
        "parameters": parameters,
        "rows": len(held.vectors),
        "build_seconds": seconds,
        "ms_a_query": latency,
        "recall_at_10": recall,
        "recall_at_10_own_vectors": None if kind == "flat" else recall_at_10(index, held, seed),
    }


def _each(items: Any, do: Callable[[Any], object]) -> Record:
    """Milliseconds of one call for each item, after one that does not count."""
    do(items[0])
    taken = []
    for item in items:
        start = time.perf_counter()
        do(item)
        taken.append(1000 * (time.perf_counter() - start))
    return {"median": float(np.median(taken)), "p95": float(np.percentile(taken, 95)), "calls": len(taken)}


def _timed(name: str, do: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = do()
    seconds = time.perf_counter() - start
    print(f"{name}: {seconds:.2f} s", file=sys.stderr, flush=True)
    return result, seconds


if __name__ == "__main__":
    sys.exit(main())
