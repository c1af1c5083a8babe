"""``sentport cluster``."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sentport.cli.collection import add_vectors_arguments, check_output, load_vectors, say
from sentport.cli.options import finite, whole

if TYPE_CHECKING:
    from sentport.search.clusters import Labels
    from sentport.search.collection import Collection

DESCRIPTION = (
    "Group stored vectors: one row each with id, cluster (0 = the largest, -1 = none) and, where known, text. "
    "Thresholds are similarities, of the kind that the model was trained for. Agglomerative "
    "clustering merges by average similarity (average linkage)."
)
EXAMPLE = (
    "sentport cluster vectors.parquet --method communities --threshold 0.75 --min-size 5 --out clusters.csv\n"
    "  sentport cluster vectors.parquet --method kmeans --k 50 --out clusters.jsonl"
)

# Above so many rows it is said what agglomerative clustering needs.
_TOLD_ROWS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_vectors_arguments(parser)
    add = parser.add_argument
    add("--method", choices=("kmeans", "agglomerative", "communities"), required=True, help="how")
    add("--k", metavar="N", type=whole(1), help="kmeans, agglomerative: how many clusters")
    add("--threshold", metavar="T", type=finite, help="agglomerative, communities: lowest similarity")
    add("--min-size", metavar="M", type=whole(1), help="communities: fewest rows of one (10)")
    add("--seed", metavar="N", type=whole(0), default=0, help="of all draws (%(default)s)")
    add("--out", metavar="FILE", type=Path, help=".csv or .jsonl file to make (default: CSV on standard output)")
    add("--force", action="store_true", help="replace an existing output file")
    add("--json", action="store_true", help="JSON lines on standard output instead of CSV")


def run(arguments: argparse.Namespace) -> int:
    """Cluster, write and sum up."""
    from sentport.inputs import counted
    from sentport.search.clusters import summary
    from sentport.search.collection import limited_threads

    _check(arguments)
    with limited_threads(arguments.threads):
        held, _ = load_vectors(arguments)
        start = time.perf_counter()
        labels = _labels(arguments, held)
        seconds = time.perf_counter() - start
        found = summary(held, labels, arguments.seed)
    _write(arguments, held, labels)
    quality = "" if found.silhouette is None else f"; silhouette {found.silhouette:.3f}"
    rows, groups = counted(found.rows, "vector"), counted(found.clusters, "cluster")
    say(
        arguments,
        f"{rows} in {groups} by {arguments.method}, {found.outside} in none: largest {found.largest}, "
        f"median {found.median:g}, smallest {found.smallest}{quality}; {seconds:.1f} s",
    )
    return 0


def _check(arguments: argparse.Namespace) -> None:
    from sentport.errors import SentportError

    takes = {"kmeans": {"k"}, "agglomerative": {"k", "threshold"}, "communities": {"threshold", "min_size"}}
    for name in ("k", "threshold", "min_size"):
        if getattr(arguments, name) is not None and name not in takes[arguments.method]:
            raise SentportError(f"--{name.replace('_', '-')} means nothing to {arguments.method}; leave it out")
    if arguments.method == "kmeans" and arguments.k is None:
        raise SentportError("kmeans needs --k, the number of clusters")
    if arguments.method == "communities" and arguments.threshold is None:
        raise SentportError("communities need --threshold, the lowest similarity to a community's centre")
    if arguments.method == "agglomerative" and (arguments.k is None) == (arguments.threshold is None):
        raise SentportError("agglomerative needs either --threshold or --k")
    out = arguments.out
    if out is not None:
        if out.suffix not in (".csv", ".jsonl"):
            raise SentportError(f"{out} ends in neither .csv nor .jsonl; name the file by its format")
        check_output(out, arguments.force, replaceable=out.is_file())


def _labels(arguments: argparse.Namespace, held: Collection) -> Labels:
    from sentport.search import clusters

    if arguments.method == "kmeans":
        return clusters.kmeans(held, arguments.k, arguments.seed)
    if arguments.method == "communities":
        return clusters.communities(held, arguments.threshold, 10 if arguments.min_size is None else arguments.min_size)
    rows = len(held.vectors)
    if _TOLD_ROWS < rows <= clusters.MOST_AGGLOMERATIVE_ROWS:
        say(
            arguments,
            f"agglomerative clustering of {rows} rows needs {clusters.agglomerative_bytes(rows) / 1e9:.1f} GB",
        )
    return clusters.agglomerative(held, threshold=arguments.threshold, k=arguments.k)


def _write(arguments: argparse.Namespace, held: Collection, labels: Labels) -> None:
    from sentport.files import file_written_aside

    if arguments.out is None:
        _write_rows(sys.stdout, arguments.json, held, labels)
        return
    with (
        file_written_aside(arguments.out.resolve()) as aside,
        aside.open("w", encoding="utf-8", newline="") as file,
    ):
        _write_rows(file, arguments.out.suffix == ".jsonl", held, labels)


def _write_rows(file: IO[str], as_json: bool, held: Collection, labels: Labels) -> None:
    names = ["id", "cluster"] if held.texts is None else ["id", "cluster", "text"]
    if as_json:
        file.writelines(
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in _rows(held, labels)
        )
        return
    table = csv.writer(file, lineterminator="\n")
    table.writerow(names)
    table.writerows(_rows(held, labels))


def _rows(held: Collection, labels: Labels) -> Iterator[tuple[Any, ...]]:
    columns: list[list[Any]] = [held.ids.tolist(), labels.tolist()]
    return zip(*columns, *([] if held.texts is None else [held.texts]), strict=True)
