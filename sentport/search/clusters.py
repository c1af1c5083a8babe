"""Groups of similar vectors: k-means, agglomerative, communities. A cluster's number is its rank by size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.search.collection import TIE, Collection, faiss, score_blocks

try:
    from scipy.cluster.hierarchy import linkage
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.metrics import silhouette_score
except ModuleNotFoundError as missing:
    raise SentportError(f"{missing.name} is not installed; pip install 'sentport[search]'") from missing

Labels = NDArray[np.int64]

# Distances of all pairs, twice: 7.2 GB.
MOST_AGGLOMERATIVE_ROWS = 30_000
# Neighbours held while communities are sought: 0.8 GB.
_MOST_NEIGHBOURS = 200_000_000
_COMMUNITY_BLOCK_VALUES = 2**24
_SILHOUETTE_ROWS = 2_000
_KMEANS_ROWS = 100_000
_UNIT_TOLERANCE = 0.01


def kmeans(held: Collection, k: int, seed: int = 0) -> Labels:
    """``[N]`` the nearest of ``k`` centres, found by Lloyd's algorithm from k-means++ starts.

    Cosine: centres have length one (spherical k-means). The centres of a large collection are trained on a draw of
    100,000 rows, or 256 a centre where that is more. The result depends on ``seed`` alone.

    Raises:
        SentportError: When ``k`` is not from 1 to N, or the similarity is no distance.
    """
    rows, dim = held.vectors.shape
    _check_k(k, rows)
    similarity = _distance_kind(held, "kmeans")
    model = faiss.Kmeans(
        dim,
        k,
        niter=30,
        nredo=3,
        seed=seed,
        spherical=similarity == "cosine",
        init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        min_points_per_centroid=1,
        max_points_per_centroid=max(256, _KMEANS_ROWS // k),
    )
    model.train(held.vectors)
    _, nearest = model.index.search(held.vectors, 1)  # [N, 1]
    return _by_size(nearest[:, 0])


def agglomerative_bytes(rows: int) -> int:
    """Memory that ``agglomerative`` needs beside the vectors: the distances of all pairs, and a copy."""
    return rows * (rows - 1) // 2 * 8 * 2


def agglomerative(held: Collection, *, threshold: float | None = None, k: int | None = None) -> Labels:
    """``[N]`` clusters made by merging the two most similar ones, by average similarity, again and again.

    Args:
        held: N vectors, at most 30,000.
        threshold: Merge while the average similarity is at least this.
        k: Or until so many are left.

    Raises:
        SentportError: When not exactly one of both is given, ``k`` is not from 1 to N, N is too large, or the
            similarity is no distance.
    """
    rows = len(held.vectors)
    if (threshold is None) == (k is None):
        raise SentportError("agglomerative clustering takes either a threshold or k")
    if k is not None:
        _check_k(k, rows)
    if rows > MOST_AGGLOMERATIVE_ROWS:
        raise SentportError(
            f"agglomerative clustering of {rows} rows needs {agglomerative_bytes(rows) / 1e9:,.1f} GB; at most "
            f"{MOST_AGGLOMERATIVE_ROWS} rows are taken, so use communities or kmeans"
        )
    similarity = _distance_kind(held, "agglomerative")
    # Cosine: distance = 1 - similarity; euclidean: the similarity is minus the distance.
    nearest = 1.0 if similarity == "cosine" else 0.0
    merges = linkage(_distances(held, similarity, nearest), "average") if rows > 1 else np.empty((0, 4))  # [N - 1, 4]
    if threshold is not None:
        count = int(np.searchsorted(merges[:, 2], nearest - threshold + TIE, "right"))
    else:
        count = rows - (k or 0)
    return _by_size(_after(merges[:count], rows))


def _distances(held: Collection, similarity: str, nearest: float) -> NDArray[np.float64]:
    """``[N (N - 1) / 2]`` distances of the pairs (0, 1), (0, 2), ..., (1, 2), ..."""
    rows = len(held.vectors)
    distances = np.empty(rows * (rows - 1) // 2)
    filled = 0
    for _, scores in score_blocks(held.vectors, similarity, upper=True):
        for row, values in enumerate(scores):
            part = values[row + 1 :]
            np.maximum(nearest - part, 0, out=distances[filled : filled + len(part)])
            filled += len(part)
    return distances


def _after(merges: NDArray[np.float64], rows: int) -> Labels:
    """``[N]`` clusters after the first M merges ``[M, 4]``: the one at m joins nodes of its two columns to N + m."""
    nodes = rows + len(merges)
    parts = merges[:, :2].astype(np.int64).ravel()  # [2 M]
    made = np.repeat(np.arange(rows, nodes), 2)
    graph = coo_array((np.ones(len(parts), np.int8), (parts, made)), (nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels[:rows], np.int64)


def communities(held: Collection, threshold: float, min_size: int = 10) -> Labels:
    """``[N]`` communities, -1 for rows in none.

    The neighbourhood of a row is every row at least ``threshold`` similar to it, itself included. Neighbourhoods are
    taken from the largest down (equal ones by row). One whose centre an earlier one took is passed over; another keeps
    the members that none took, and is a community if ``min_size`` are left. So no row is in two, and each member is
    near its community's centre. Exact; the definition is that of sentence-transformers' ``community_detection``.

    Raises:
        SentportError: For a ``min_size`` below 1, or a threshold that nearly all rows pass.
    """
    if min_size < 1:
        raise SentportError(f"min-size is {min_size}; expected 1 or more")
    hoods: list[tuple[int, NDArray[np.int32]]] = []  # centre, members
    held_neighbours = 0
    for start, scores in score_blocks(held.vectors, held.similarity, values=_COMMUNITY_BLOCK_VALUES):
        near = scores >= threshold - TIE  # [B, N]
        here = np.arange(len(near))
        near[here, start + here] = True
        sizes = np.count_nonzero(near, axis=1)
        for row in np.flatnonzero(sizes >= min_size):
            hoods.append((start + int(row), np.flatnonzero(near[row]).astype(np.int32)))
            held_neighbours += int(sizes[row])
            if held_neighbours > _MOST_NEIGHBOURS:
                raise SentportError(f"rows have too many neighbours at threshold {threshold}; raise it")
    labels = np.full(len(held.vectors), -1, np.int64)
    for centre, hood in sorted(hoods, key=lambda one: len(one[1]), reverse=True):
        free = hood[labels[hood] < 0]
        if labels[centre] < 0 and len(free) >= min_size:
            labels[free] = centre
    return _by_size(labels)


@dataclass(frozen=True, slots=True)
class Summary:
    """Clusters in figures.

    Attributes:
        rows: N.
        clusters: How many there are.
        largest: Rows of the largest; the next two likewise.
        median: Rows of the median one.
        smallest: Rows of the smallest.
        outside: Rows in no cluster.
        silhouette: Mean silhouette, from -1 to 1, of a draw of at most 2,000 rows; None where it is undefined.
    """

    rows: int
    clusters: int
    largest: int
    median: float
    smallest: int
    outside: int
    silhouette: float | None


def summary(held: Collection, labels: Labels, seed: int = 0) -> Summary:
    """Sizes and silhouette of clusters ``[N]``."""
    inside = np.flatnonzero(labels >= 0)
    sizes = np.bincount(labels[inside])
    if not len(sizes):
        return Summary(len(labels), 0, 0, 0.0, 0, len(labels), None)
    return Summary(
        rows=len(labels),
        clusters=len(sizes),
        largest=int(sizes.max()),
        median=float(np.median(sizes)),
        smallest=int(sizes.min()),
        outside=len(labels) - len(inside),
        silhouette=_silhouette(held, labels, inside, seed),
    )


def _silhouette(held: Collection, labels: Labels, inside: NDArray[np.int64], seed: int) -> float | None:
    drawn = np.random.default_rng(seed).permutation(inside)[:_SILHOUETTE_ROWS]
    if held.similarity == "dot" or not 2 <= len(np.unique(labels[drawn])) < len(drawn):
        return None
    return float(silhouette_score(held.vectors[drawn], labels[drawn], metric=held.similarity))


def _check_k(k: int, rows: int) -> None:
    if not 1 <= k <= rows:
        raise SentportError(f"k is {k}; expected 1 to {rows}, the number of rows")


def _distance_kind(held: Collection, method: str) -> str:
    """``cosine`` or ``euclidean``: dot products stand for a distance only where all vectors have length one."""
    if held.similarity != "dot":
        return held.similarity
    lengths = np.linalg.norm(held.vectors, axis=1)
    if np.abs(lengths - 1).max() > _UNIT_TOLERANCE:
        raise SentportError(
            f"the similarity is dot and vectors have lengths {lengths.min():.3g} to {lengths.max():.3g}: that is no "
            f"distance, as {method} needs; use communities"
        )
    return "cosine"


def _by_size(labels: Labels) -> Labels:
    """The same clusters, numbered from the largest; equal ones by their first row. -1 stays."""
    found, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    order = order[found[order] >= 0]
    number = np.full(len(found), -1, np.int64)
    number[order] = np.arange(len(order))
    return number[inverse]
