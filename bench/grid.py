"""Which rows a run has: contestants x batch policies x tokenisation, and the flat case beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.contestants import ROWS_PER_BATCH, Contestant, Vectors, Work, bundle_engine, peer, torch_engine
from bench.contestants import sentence_transformers as baseline
from bench.corpus import Corpus, equal_lengths
from bench.peers import ENVIRONMENTS
from bench.quality import Questions, make_questions
from bench.records import Record, Writer, run_conditions
from bench.run import Case, Say, Session, Settings, Workload, make_workload
from sentport.bundle import read_bundle
from sentport.engines import FLAVOURS
from sentport.errors import PrecisionError, SentportError
from sentport.evaluation.sts import StsPairs
from sentport.hardware import available_cores
from sentport.scheduler import BatchPolicy
from sentport.tokenizer import Tokenizer

CONTESTANTS = ("sentence-transformers", "torch", "onnxruntime", "triton")
# Measured only where they are asked for.
PEERS = ("sentence-transformers-onnx", "sentence-transformers-qint8")
KNOWN = (*CONTESTANTS, "openvino", *PEERS)

# With tokenisation taken out, these two tell what sorting does to the engine; the other policies add nothing there.
_APART = (BatchPolicy.ARRIVAL, BatchPolicy.SMART)
# On texts of one length neither sorting nor packing can gain: one engine in both orders, and the baseline.
_FLAT: tuple[tuple[str, tuple[BatchPolicy | None, ...]], ...] = (
    (baseline.NAME, (None,)),
    (bundle_engine.NAME, (BatchPolicy.ARRIVAL, BatchPolicy.SMART)),
)


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A running Triton server and how it is asked.

    Attributes:
        url: ``http://host:port``, or ``host:port`` for gRPC.
        model: The model's name there.
        clients: Clients that send at the same time.
        texts_per_request: Texts of a request.
    """

    url: str
    model: str
    clients: int = 16
    texts_per_request: int = 16


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run measures.

    Attributes:
        checkpoint: Folder of the source model, which the reference reads.
        bundle: Its bundle; without it there is no ``onnxruntime`` row.
        corpus: What is encoded.
        contestants: Of ``KNOWN``.
        policies: Batch policies, for contestants that can be told.
        precisions: Of the bundle's graphs, side by side, each with a flavour where it is named: ``int8-ort``.
        layouts: Likewise; None = those it has.
        apart: Measure with tokenisation taken out as well.
        flat: Measure the flat case too.
        servers: Running servers.
        missing: Rows that cannot be run and why, for the table.
        settings: How often and in which order.
        threads: Compute threads in all; None = the cores that affinity and cgroup allow.
        device: ``cpu`` or ``cuda``; a row that runs elsewhere is an error.
        texts: Texts to draw from the corpus; None = all.
        pairs: Rated sentence pairs, whose quality figures every contestant gets once; None = none.
        environments: Folder of the peers' environments.
    """

    checkpoint: Path
    bundle: Path | None
    corpus: Corpus
    contestants: tuple[str, ...] = CONTESTANTS
    policies: tuple[BatchPolicy, ...] = tuple(BatchPolicy)
    precisions: tuple[str, ...] = ("auto",)
    layouts: tuple[str, ...] | None = None
    apart: bool = True
    flat: bool = True
    servers: tuple[ServerTarget, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    settings: Settings = field(default_factory=Settings)
    threads: int | None = None
    device: str = "cpu"
    texts: int | None = None
    pairs: StsPairs | None = None
    environments: Path = ENVIRONMENTS


def measure(options: RunOptions, out: Path, say: Say, *, progress: bool = True) -> Path:
    """Run the whole grid.

    Args:
        options: What to measure.
        out: Folder of the raw file.
        say: Takes progress lines.
        progress: Show bars on stderr when that is a terminal.

    Returns:
        The raw file, new for this run.

    Raises:
        SentportError: When a contestant cannot be opened, or ran on another device than the one asked for.
    """
    missing = list(options.missing)
    contestants = open_contestants(options, missing)
    try:
        workloads = _workloads(options, contestants, say)
        cases = make_cases(options, contestants, workloads)
        shared = run_conditions()
        with Writer(out, shared) as writer:
            session = Session(writer, shared, options.settings, say, progress, _questions(options, contestants[0]))
            for place, (name, reason) in enumerate(missing, start=len(cases)):
                session.not_run(_placeholder(name, place, options, workloads[0]), reason)
            say(f"measuring {len(cases)} rows, {options.settings.repeats} interleaved rounds")
            session.run(cases)
            return writer.path
    finally:
        for contestant in contestants:
            contestant.close()


def open_contestants(options: RunOptions, missing: list[tuple[str, str]]) -> list[Contestant]:
    """The contestants asked for, as far as there is a bundle or a server for them, the reference first.

    Args:
        options: What to measure.
        missing: Gets the names of those in a precision that this machine does not run, and why.

    Raises:
        SentportError: When none is left, or one cannot be opened.
    """
    unknown = sorted(set(options.contestants) - set(KNOWN))
    if unknown:
        raise SentportError(f"contestant {', '.join(unknown)} is unknown; known: {', '.join(KNOWN)}")
    opened = list(_opened(options, options.threads or available_cores(), missing))
    if not opened or opened[0].name not in (baseline.NAME, torch_engine.NAME):
        raise SentportError(
            "vectors are judged by the source model's, and neither sentence-transformers nor torch is among the "
            "contestants; add one of them"
        )
    return opened


def _opened(options: RunOptions, threads: int, missing: list[tuple[str, str]]) -> Iterator[Contestant]:
    if "sentence-transformers" in options.contestants:
        yield baseline.SentenceTransformersContestant(options.checkpoint, threads, options.device)
    if "torch" in options.contestants:
        yield torch_engine.open_contestant(options.checkpoint, threads, options.device)
    if options.bundle:
        yield from _on_engines(options, options.bundle, threads, missing)
    for name in options.contestants:
        if name in PEERS:
            quantised = name.endswith("qint8")
            yield peer.open_contestant(
                options.checkpoint, threads, quantised=quantised, environments=options.environments
            )
    if "triton" in options.contestants and options.servers:
        from bench.contestants.triton import TritonContestant

        source = options.checkpoint.resolve().name
        several = len({server.url for server in options.servers}) > 1
        for server in dict.fromkeys(options.servers):
            yield TritonContestant(
                server.url, server.model, source, server.clients, server.texts_per_request, one_of_many=several
            )


def _on_engines(
    options: RunOptions, bundle: Path, threads: int, missing: list[tuple[str, str]]
) -> Iterator[Contestant]:
    engines = [name for name in bundle_engine.ENGINES if name in options.contestants]
    layouts = options.layouts or read_bundle(bundle).layouts
    for engine, precision, layout in product(engines, options.precisions, layouts):
        flavour = precision.partition("-")[2]
        if flavour and flavour not in FLAVOURS[engine]:
            continue
        try:
            yield bundle_engine.open_contestant(bundle, threads, options.device, layout, precision, engine)
        except PrecisionError as error:
            missing.append((f"sentport {engine} {precision} {layout}", str(error)))


def make_cases(options: RunOptions, contestants: Sequence[Contestant], workloads: Sequence[Workload]) -> list[Case]:
    """The rows of a run: the grid on the corpus, then the flat case where there is a second workload."""
    main, *flat = workloads
    rows = [(contestant, work, main) for contestant in contestants for work in _works(contestant, options)]
    rows += [
        (contestant, Work(policy), workload)
        for workload, (name, policies) in product(flat, _FLAT)
        for contestant in contestants
        if contestant.name.startswith(name)
        for policy in policies
    ]
    return [
        Case(contestant, work, workload, options.device, place, _is_baseline(contestant.name, work))
        for place, (contestant, work, workload) in enumerate(rows)
    ]


def _works(contestant: Contestant, options: RunOptions) -> Iterator[Work]:
    asked = (None, *options.policies)
    for policy in contestant.policies:
        if policy not in asked:
            continue
        sizes = contestant.own_rows if policy is None else (ROWS_PER_BATCH,)
        yield from (Work(policy, rows_per_batch=rows) for rows in sizes)
        if options.apart and contestant.tokenises_apart and policy in _APART:
            yield Work(policy, tokenised=True)


def _is_baseline(name: str, work: Work) -> bool:
    return name == baseline.NAME and work.policy is None


def _workloads(options: RunOptions, contestants: Sequence[Contestant], say: Say) -> list[Workload]:
    """The corpus, and its texts of one length, both with the reference's vectors."""
    count_tokens, max_tokens = token_counter(options)
    corpora = [_drawn(options.corpus, options)]
    if options.flat:
        flat = equal_lengths(options.corpus, count_tokens)
        if flat is None:
            say("no flat case: too few texts of one length")
        else:
            corpora.append(_drawn(flat, options))
    judge = contestants[0]
    reference = _reference(judge)
    return [make_workload(corpus, count_tokens(corpus.texts), max_tokens, reference, judge.name) for corpus in corpora]


def _reference(judge: Contestant) -> Callable[[Sequence[str]], Vectors]:
    work = Work(judge.policies[0] if judge.name == baseline.NAME else BatchPolicy.TOKEN_BUDGET)

    def reference(texts: Sequence[str]) -> Vectors:
        judge.prepare(texts, work)
        return judge.run(work)

    return reference


def _questions(options: RunOptions, judge: Contestant) -> Questions | None:
    if options.pairs is None:
        return None
    return make_questions("STS-B test", options.pairs, _reference(judge), options.settings.seed)


def _drawn(corpus: Corpus, options: RunOptions) -> Corpus:
    return corpus.sample(options.texts or len(corpus.texts), options.settings.seed)


def token_counter(options: RunOptions) -> tuple[Callable[[Sequence[str]], NDArray[np.int64]], int]:
    """What counts the tokens of texts as the model sees them, and the model's length limit."""
    if options.bundle:
        bundle = read_bundle(options.bundle)
        spec = bundle.spec
        tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), spec.max_tokens)
    else:
        from sentport.engines.torch import open_checkpoint

        spec, definition, engine = open_checkpoint(options.checkpoint, options.threads, options.device)
        engine.close()
        tokenizer = Tokenizer(definition, spec.max_tokens)
    prefix = spec.prompts.get(spec.default_prompt or "", "")
    return lambda texts: tokenizer.encode([prefix + text for text in texts]).lengths, spec.max_tokens


def _placeholder(name: str, place: int, options: RunOptions, workload: Workload) -> Record:
    """What is known of a row that cannot be run."""
    return {
        "contestant": name,
        "policy": "own",
        "batch": "",
        "tokenisation_inside": True,
        "place": place,
        "baseline": False,
        "device_asked": options.device,
        "corpus": workload.corpus.name,
        "corpus_source": workload.corpus.source,
        "texts": len(workload.corpus.texts),
    }
