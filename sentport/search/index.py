"""Nearest-neighbour indexes: faiss's, in a folder that says which model's vectors it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.manifest import Manifest, StoreError, read_manifest, seal, unseal
from sentport.bundle import sha256_of
from sentport.errors import SentportError
from sentport.files import folder_written_aside
from sentport.search.collection import TIE, Collection, Vectors, exact_scores, faiss, query_vectors

FORMAT = "1.0"
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.faiss"
ROWS_FILE = "rows.json"

KINDS = ("flat", "hnsw", "ivfpq")
# What each kind is built and searched with, and the parameter that trades a query's time for recall.
EFFORT = {"flat": None, "hnsw": "ef_search", "ivfpq": "nprobe"}

# faiss's own advice: this many rows to train a centre with; a sub-vector has 256 centres.
_ROWS_A_CENTRE = 39
LEAST_IVFPQ_ROWS = 256 * _ROWS_A_CENTRE
_ADD_ROWS = 8_192
_MOST_LINKS = 1024
_MOST_VALUE = 2**20  # faiss takes memory for that many candidates at once
_RECALL_QUERIES = 500
_RECALL_K = 10

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index is.

    Attributes:
        kind: ``flat`` (exact), ``hnsw`` (a graph) or ``ivfpq`` (lists of compressed vectors).
        parameters: What it was built with and is searched with.
        recall: As ``recall_at_10`` measured; None for ``flat``, which misses none.
        vectors: What it holds: model, similarity, dim, precision, stored type.
        sha256: Hash of each of its files.
        format: Version of this description.
    """

    kind: str
    parameters: Mapping[str, int]
    recall: float | None
    vectors: Manifest
    sha256: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT


@dataclass(frozen=True, slots=True)
class Index:
    """An index in memory, ready to be searched."""

    manifest: IndexManifest
    ids: list[int | str]
    texts: list[str] | None
    faiss_index: Any

    def search(self, queries: Vectors, k: int, effort: int | None = None) -> tuple[NDArray[np.float32], Rows]:
        """The nearest vectors of each query.

        Args:
            queries: ``[Q, dim]`` vectors as the model gives them.
            k: How many; fewer where the index holds or finds fewer.
            effort: ``ef_search`` or ``nprobe`` other than the one it was built with.

        Returns:
            ``[Q, k]`` similarities, best first, and ``[Q, k]`` row numbers; -1 where nothing more was found.

        Raises:
            SentportError: For a ``k`` or ``effort`` out of range, or an effort for a flat index.
        """
        held = self.manifest
        name = EFFORT[held.kind]
        if k < 1:
            raise SentportError(f"results are {k} a query; expected 1 or more")
        if effort is not None and not 1 <= effort <= _MOST_VALUE:
            raise SentportError(f"effort is {effort}; expected 1 to {_MOST_VALUE}")
        if effort is not None and name is None:
            raise SentportError("a flat index compares every vector: it has no effort to set")
        if name is not None:
            _set_effort(self.faiss_index, held.kind, effort or held.parameters[name])
        return _search(self.faiss_index, query_vectors(queries, held.vectors.similarity), min(k, len(self.ids)))


def index_parameters(kind: str, rows: int, dim: int, chosen: Mapping[str, int | None] | None = None) -> dict[str, int]:
    """What to build an index with: by size, or as chosen.

    Args:
        kind: One of ``KINDS``.
        rows: Vectors that it will hold.
        dim: Their width.
        chosen: Values by name to take instead; None = not chosen.

    Raises:
        SentportError: For an unknown kind, a parameter that it does not have, a value out of range, or too few rows for
            ivfpq.
    """
    if kind not in KINDS:
        raise SentportError(f"index kind {kind!r} is unknown; known: {', '.join(KINDS)}")
    given = {name: value for name, value in (chosen or {}).items() if value is not None}
    values: dict[str, int] = {}
    if kind == "hnsw":
        values = {"m": 32, "ef_construction": 80, "ef_search": 64}
    if kind == "ivfpq":
        if rows < LEAST_IVFPQ_ROWS:
            raise SentportError(
                f"ivfpq needs {LEAST_IVFPQ_ROWS:,} rows to train its codes, there are {rows:,}; "
                "use flat or hnsw, which are fast at this size"
            )
        nlist = given.get("nlist", min(round(4 * rows**0.5), rows // _ROWS_A_CENTRE))
        # Four values a code byte, or as near to that as the width allows.
        m = max((m for m in range(1, dim // 4 + 1) if dim % m == 0), default=1)
        values = {"nlist": nlist, "m": m, "nprobe": max(8, nlist // 16)}
    foreign = sorted(given.keys() - values.keys())
    if foreign:
        raise SentportError(f"{foreign[0]} is no parameter of {kind}; it has {', '.join(values) or 'none'}")
    values |= given
    for name, value in values.items():
        # With one link a vector, faiss divides by the logarithm of one.
        least, most = (2, _MOST_LINKS) if (kind, name) == ("hnsw", "m") else (1, _MOST_VALUE)
        if not least <= value <= most:
            raise SentportError(f"{name} of {kind} is {value}; expected {least} to {most}")
    if kind == "ivfpq" and (dim % values["m"] or values["nlist"] * _ROWS_A_CENTRE > rows):
        raise SentportError(
            f"ivfpq with nlist {values['nlist']} and m {values['m']}: m must divide {dim}, the width of the vectors, "
            f"and nlist be at most {rows // _ROWS_A_CENTRE}, a {_ROWS_A_CENTRE}th of the rows"
        )
    return values


def build_index(
    held: Collection,
    kind: str,
    parameters: Mapping[str, int],
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
) -> Any:
    """A faiss index over a collection; ``seed`` alone decides it, but for an hnsw built by several threads.

    Args:
        held: N vectors.
        kind: One of ``KINDS``.
        parameters: As ``index_parameters`` gave them.
        seed: Of all draws.
        advance: Told how many rows were added.
    """
    index = _empty(kind, held.vectors.shape[1], held.similarity, parameters, seed)
    if not index.is_trained:
        index.train(held.vectors)
    for start in range(0, len(held.vectors), _ADD_ROWS):
        part = held.vectors[start : start + _ADD_ROWS]
        index.add(part)
        if advance is not None:
            advance(len(part))
    if name := EFFORT[kind]:
        _set_effort(index, kind, parameters[name])
    return index


def _empty(kind: str, dim: int, similarity: str, parameters: Mapping[str, int], seed: int) -> Any:
    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
    if kind == "flat":
        return faiss.IndexFlat(dim, metric)
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(dim, parameters["m"], metric)
        graph.hnsw.efConstruction = parameters["ef_construction"]
        graph.hnsw.rng = faiss.RandomGenerator(seed)
        return graph
    centres = faiss.IndexFlat(dim, metric)
    lists = faiss.IndexIVFPQ(centres, dim, parameters["nlist"], parameters["m"], 8, metric)
    lists.cp.seed = lists.pq.cp.seed = seed
    # 25 rounds over 256 rows a centre, faiss's defaults, take four times as long and find no more.
    lists.pq.cp.niter, lists.pq.cp.max_points_per_centroid = 10, 64
    return lists


def _set_effort(index: Any, kind: str, value: int) -> None:
    if kind == "hnsw":
        index.hnsw.efSearch = value
    else:
        index.nprobe = value


def _search(index: Any, ready: Vectors, k: int) -> tuple[NDArray[np.float32], Rows]:
    found, rows = index.search(ready, k)  # [Q, k] each
    if index.metric_type == faiss.METRIC_L2:  # squared, and the nearest is the smallest
        found = -np.sqrt(np.maximum(found, 0))
    return found, rows


def recall_at_10(index: Any, held: Collection, seed: int = 0) -> float | None:
    """Share of the 10 nearest others that an index finds, over a draw of 500 of its own vectors; None for one vector.

    A vector is no neighbour of its own.
    """
    total = len(held.vectors)
    k = min(_RECALL_K, total - 1)
    if not k:
        return None
    drawn = np.random.default_rng(seed).permutation(total)[:_RECALL_QUERIES]
    queries = held.vectors[drawn]  # [Q, dim]
    flat = _empty("flat", held.vectors.shape[1], held.similarity, {}, seed)
    flat.add(held.vectors)
    found = (_search(one, queries, k + 1)[1] for one in (flat, index))  # [Q, k + 1] each
    truth, ours = ([near[near != row][:k] for row, near in zip(drawn, table, strict=True)] for table in found)
    return share_found(held, queries, truth, ours)


def share_found(held: Collection, queries: Vectors, truth: Sequence[Rows], found: Sequence[Rows]) -> float:
    """Mean share, over queries ``[Q, dim]``, of their true nearest rows that were found; ties are no loss."""
    shares = []
    for query, wanted, ours in zip(queries, truth, found, strict=True):
        bound = exact_scores(query, held.vectors[wanted], held.similarity).min() - TIE
        scores = exact_scores(query, held.vectors[ours[ours >= 0]], held.similarity)
        shares.append(np.count_nonzero(scores >= bound) / len(wanted))
    return float(np.mean(shares))


def write_index(out: Path, index: Any, held: Collection, manifest: IndexManifest) -> None:
    """Write an index folder: aside, then renamed.

    Args:
        out: The folder; one that exists is replaced.
        index: As ``build_index`` made it.
        held: What it holds.
        manifest: What it is; the hashes are put in here.
    """
    with folder_written_aside(out) as aside:
        faiss.write_index(index, str(aside / INDEX_FILE))
        rows = {"ids": held.ids.tolist(), "texts": held.texts}
        (aside / ROWS_FILE).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
        hashes = {name: sha256_of(aside / name) for name in (INDEX_FILE, ROWS_FILE)}
        text = seal({**asdict(manifest), "vectors": manifest.vectors.to_json(indent=None), "sha256": hashes}, indent=2)
        (aside / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def is_index(folder: Path) -> bool:
    """Whether a folder is an index."""
    return (folder / INDEX_FILE).is_file() and (folder / MANIFEST_FILE).is_file()


def read_index(folder: str | Path) -> Index:
    """Open an index folder, its files checked by hash.

    Raises:
        StoreError: When it is no index, damaged, changed, or of another format.
    """
    home = Path(folder)
    if not is_index(home):
        raise StoreError(f"{home} is no index; make one with `sentport search build VECTORS --out {home}`")
    manifest = _read_manifest(home / MANIFEST_FILE)
    for name in (INDEX_FILE, ROWS_FILE):
        if not (home / name).is_file() or sha256_of(home / name) != manifest.sha256.get(name):
            raise StoreError(f"{home / name} is missing or has changed since it was written; build the index again")
    rows = json.loads((home / ROWS_FILE).read_bytes())
    try:
        found = faiss.read_index(str(home / INDEX_FILE))
    except RuntimeError as error:  # whole, as its hash says, so of another version
        raise StoreError(f"this faiss does not read {home / INDEX_FILE}; build the index again") from error
    return Index(manifest, rows["ids"], rows["texts"], found)


def _read_manifest(file: Path) -> IndexManifest:
    try:
        values = unseal(file.read_bytes())
        found = str(values["format"])
        if found == FORMAT:
            vectors = read_manifest(values["vectors"], str(file))
            held = {one.name: values[one.name] for one in fields(IndexManifest)}
            return IndexManifest(**{**held, "vectors": vectors})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is damaged ({error}); build the index again, with --force") from None
    raise StoreError(f"{file} has format {found}, this sentport reads {FORMAT}; build the index again")
