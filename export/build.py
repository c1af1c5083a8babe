"""A bundle's portable graphs become TensorRT plans, with profiles planned on the lengths of a corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from export.profiles import (
    Expectation,
    Histogram,
    Ints,
    best_edges,
    check_corpus,
    check_coverage,
    corpus_lengths,
    equal_edges,
    expected,
    packed_profiles,
    packed_totals,
    padded_profiles,
    with_rest,
)
from export.tensorrt import Target, build_plan, check_kind, check_target, plan_name
from sentport.bundle import LAYOUTS, Bundle, GraphRecord
from sentport.engines import TOKEN_BUDGETS
from sentport.errors import SentportError
from sentport.plans import FOLDER, Plan, Profile, refuse_unwritable
from sentport.tokenizer import Tokenizer


@dataclass(frozen=True)
class BuildOptions:
    """What to build and for which shapes.

    Attributes:
        target: Builder and devices.
        layouts: Of the graphs to build; None = all that are portable.
        precisions: Of the graphs to build; None = all that are portable.
        corpus: File of texts, one a line; None = the lengths that the bundle holds.
        profiles: How many to plan, one more where the model takes longer texts than the corpus has.
        edges: Token counts that profiles end at, instead of planned ones.
        token_budget: Computed tokens of a batch; profiles have as many rows as it holds.
        max_rows: Rows of a batch at most.
        force: Replace a plan of the same name.
    """

    target: Target
    layouts: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    corpus: Path | None = None
    profiles: int = 4
    edges: tuple[int, ...] = ()
    token_budget: int = TOKEN_BUDGETS["cuda"]
    max_rows: int = 1024
    force: bool = False


class Outline(NamedTuple):
    """Planned profiles and what they are expected to waste.

    Attributes:
        profiles: As they are built.
        planned: Waste of these edges; None without a corpus.
        one: Of one profile for all.
        equal: Of as many profiles of equal width.
    """

    profiles: tuple[Profile, ...]
    planned: Expectation | None = None
    one: Expectation | None = None
    equal: Expectation | None = None


def build_plans(bundle: Bundle, options: BuildOptions, say: Callable[[str], object]) -> list[tuple[Plan, Outline]]:
    """Build a plan of every graph asked for; the bundle's other files stay as they are.

    Args:
        bundle: The bundle.
        options: What to build.
        say: Told what is being done.

    Raises:
        SentportError: When there is no such graph, no corpus, or something cannot be built.
    """
    check_target(options.target)
    refuse_unwritable(bundle)
    graphs = _graphs(bundle, options)
    lengths = lengths_of(bundle, options)
    outlines = {graph.layout: outline(graph.layout, lengths, bundle.spec.max_tokens, options) for graph in graphs}
    for graph in graphs:
        name = plan_name(graph, options.target)
        if not options.force and (bundle.path / FOLDER / f"{name}.json").exists():
            raise SentportError(f"{bundle.path / FOLDER} has {name} already; add --force to replace it")
    built = []
    for graph in graphs:
        found = outlines[graph.layout]
        built.append((build_plan(bundle, graph, found.profiles, options.target, say), found))
    return built


def outline(layout: str, lengths: Ints | None, max_tokens: int, options: BuildOptions) -> Outline:
    """The profiles of a layout.

    Args:
        layout: ``padded`` or ``packed``.
        lengths: ``[N]`` tokens of the corpus's texts; None where edges are given and there is no corpus.
        max_tokens: The model's limit, up to which every length has to be covered.
        options: Edges or how many to plan, and the budget.

    Raises:
        SentportError: When edges leave a length uncovered, or packed rows cannot be planned without a corpus.
    """
    longest = max(max_tokens, options.token_budget) if layout == "packed" else max_tokens
    if options.edges and options.edges[-1] > longest:
        raise SentportError(
            f"edge {options.edges[-1]} is above {longest} tokens, the most that can come; end the edges there"
        )
    if lengths is None:
        if layout == "packed":
            raise SentportError("layout packed needs --corpus, which tells how many rows a batch has")
        check_coverage(options.edges, longest)
        return Outline(padded_profiles(options.edges, options.token_budget, options.max_rows))
    sizes = Histogram.of(packed_totals(lengths, options.token_budget) if layout == "packed" else lengths)
    edges = options.edges or with_rest(best_edges(sizes, options.profiles), longest)
    check_coverage(edges, longest)
    if layout == "packed":
        profiles = packed_profiles(edges, Histogram.of(lengths), options.max_rows)
    else:
        profiles = padded_profiles(edges, options.token_budget, options.max_rows)
    used = [edge for edge in edges if edge <= sizes.sizes[-1]]
    count = max(1, len(used))
    return Outline(
        profiles,
        expected(sizes, edges),
        expected(sizes, equal_edges(sizes, 1)),
        expected(sizes, equal_edges(sizes, count)),
    )


def _graphs(bundle: Bundle, options: BuildOptions) -> list[GraphRecord]:
    """Those asked for, each of which TensorRT has to take; all portable ones where none is named."""
    layouts = options.layouts or LAYOUTS
    precisions = options.precisions or tuple({graph.precision for graph in bundle.graphs})
    asked = [graph for graph in bundle.graphs if graph.layout in layouts and graph.precision in precisions]
    portable = [graph for graph in asked if graph.flavour == "portable"]
    if not portable:
        if asked:
            check_kind(asked[0])
        held = ", ".join(sorted({f"{graph.layout} {graph.precision}" for graph in bundle.graphs}))
        raise SentportError(f"{bundle.path} has no such graph; it holds {held}")
    missing = [name for name in (options.precisions or ()) if name not in {graph.precision for graph in portable}]
    missing += [name for name in (options.layouts or ()) if name not in {graph.layout for graph in portable}]
    if missing:
        raise SentportError(
            f"{bundle.path} has no portable graph of {', '.join(map(repr, missing))}; export it with those"
        )
    for graph in portable:
        check_kind(graph)
    return portable


def lengths_of(bundle: Bundle, options: BuildOptions) -> Ints | None:
    """Tokens ``[N]`` of the texts that profiles are planned on; None where edges are given and there is no corpus.

    Raises:
        SentportError: When there is neither, or the corpus cannot be read.
    """
    if options.corpus is not None:
        tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
        check_corpus(options.corpus)
        return corpus_lengths(bundle.spec, tokenizer, options.corpus)
    if bundle.length_counts:
        sizes = np.array([int(tokens) for tokens in bundle.length_counts], np.int64)
        return np.repeat(sizes, list(bundle.length_counts.values()))
    if options.edges:
        return None
    raise SentportError("nothing to plan profiles from; give --corpus FILE with texts like those that will come")
