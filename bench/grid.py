"""Which rows a run has: models x devices x threads make blocks, contestants x policies x corpora the rows of each.

A block holds what may be compared: one model, one device, one number of threads, its own baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.cases import Case, Settings, Workload, make_workload
from bench.contestants import ROWS_PER_BATCH, Conditions, Contestant, Vectors, Work, bundle_engine, torch_engine
from bench.contestants import sentence_transformers as baseline
from bench.contestants.opening import GRAPHS, PEERS, Spec, open_contestant
from bench.corpus import Corpus, equal_lengths
from bench.peers import variants
from bench.peers.environments import ENVIRONMENTS
from bench.quality import Questions, make_questions
from bench.records import Record
from bench.roofline import model_flop
from sentport.bundle import read_bundle
from sentport.engines import FLAVOURS
from sentport.errors import PrecisionError, SentportError
from sentport.evaluation.sts import StsPairs
from sentport.hardware import available_cores
from sentport.scheduler import BatchPolicy
from sentport.tokenizer import Tokenizer

CONTESTANTS = ("sentence-transformers", "torch", "onnxruntime", "native", "triton")
# A corpus of this name is made of the texts of equal length in the first one.
EQUAL = "equal"

Missing = list[tuple[str, str]]

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
    """A block: what is measured with one model on one device.

    Attributes:
        checkpoint: Folder of the source model, which the reference reads.
        bundle: Its bundle; without it there is no ``onnxruntime`` and no ``native`` row.
        corpora: What is encoded, a table each.
        contestants: Of ``KINDS``.
        policies: Batch policies, for contestants that can be told.
        precisions: Of the bundle's graphs, side by side, each with a flavour where it is named: ``int8-ort``.
        layouts: Likewise; None = those it has.
        sessions: Engine calls in flight at once, side by side; 0 = the engine's choice.
        apart: Measure with tokenisation taken out as well.
        flat: Measure the texts of equal length in the first corpus too.
        probe: Measure start-up, memory and single texts of each contestant in a process of its own.
        ceilings: Measure what the machine multiplies at most.
        servers: Running servers.
        serve: Start our own server of the bundle for the block.
        loads: Clients and texts of a request, at which servers are measured, the peers' too.
        missing: Rows that cannot be run and why, for the table.
        settings: How often and in which order.
        threads: Compute threads in all; None = the cores that affinity and cgroup allow.
        device: ``cpu`` or ``cuda``; a row that runs elsewhere is an error.
        texts: Texts to draw from each corpus; None = all.
        pairs: Rated sentence pairs, whose quality figures every contestant gets once; None = none.
        environments: Folder of the peers' environments.
        grid: The grid's name; records of one name and one machine make one table.
        signature: Of all that was asked for; a block that ends is recorded by it.
    """

    checkpoint: Path
    bundle: Path | None
    corpora: tuple[Corpus, ...]
    contestants: tuple[str, ...] = CONTESTANTS
    policies: tuple[BatchPolicy, ...] = tuple(BatchPolicy)
    precisions: tuple[str, ...] = ("auto",)
    layouts: tuple[str, ...] | None = None
    sessions: tuple[int, ...] = (0,)
    apart: bool = True
    flat: bool = True
    probe: bool = False
    ceilings: bool = True
    servers: tuple[ServerTarget, ...] = ()
    serve: bool = False
    loads: tuple[tuple[int, int], ...] = ((16, 16),)
    missing: tuple[tuple[str, str], ...] = ()
    settings: Settings = field(default_factory=Settings)
    threads: int | None = None
    device: str = "cpu"
    texts: int | None = None
    pairs: StsPairs | None = None
    environments: Path = ENVIRONMENTS
    grid: str = ""
    signature: str = ""

    @property
    def total_threads(self) -> int:
        """Compute threads in all, as a number."""
        return self.threads or available_cores()

    @property
    def block(self) -> Record:
        """What all its records share."""
        return {"model_asked": self.checkpoint.resolve().name, "threads_asked": self.total_threads}


@dataclass(frozen=True, slots=True)
class Opened:
    """A contestant with what it was opened by."""

    spec: Spec
    contestant: Contestant


def open_contestants(options: RunOptions, missing: Missing) -> list[Opened]:
    """The contestants asked for, as far as there is a bundle or a server for them, the reference first.

    Args:
        options: What to measure.
        missing: Gets the names of those in a precision that this machine does not run, of peers that do not, and why.

    Raises:
        SentportError: When none is left, or one cannot be opened.
    """
    with ExitStack() as closing:  # what is open is closed again where a later one cannot be had
        opened = []
        for spec in specs(options):
            try:
                opened.append(Opened(spec, open_contestant(spec)))
            except PrecisionError as error:
                missing.append((f"sentport {spec.kind} {spec.precision} {spec.layout}", str(error)))
            except SentportError as error:
                if spec.kind not in (*PEERS, "native", "openvino"):
                    raise
                title = variants()[spec.kind].title if spec.kind in PEERS else f"sentport {spec.kind} {spec.precision}"
                missing.append((title, str(error)))
            else:
                closing.callback(opened[-1].contestant.close)
        # Peers have been loading side by side meanwhile.
        opened = _distinct([each for each in opened if _answers(each, missing)])
        if not opened or opened[0].contestant.name not in (baseline.NAME, torch_engine.NAME):
            raise SentportError(
                "vectors are judged by the source model's, and neither sentence-transformers nor torch is among the "
                "contestants; add one of them"
            )
        closing.pop_all()
    return opened


def _distinct(opened: Sequence[Opened]) -> list[Opened]:
    """Each once: precision ``auto`` and the one that it stands for are the same row."""
    found: dict[tuple[str, Conditions], Opened] = {}
    for each in opened:
        if found.setdefault((each.contestant.name, each.contestant.conditions()), each) is not each:
            each.contestant.close()
    return list(found.values())


def _answers(opened: Opened, missing: Missing) -> bool:
    """Whether a peer got as far as to say what it is; others did when they were opened."""
    if opened.spec.kind not in PEERS:
        return True
    try:
        opened.contestant.conditions()
    except SentportError as error:
        missing.append((opened.contestant.name, str(error)))
        opened.contestant.close()
        return False
    return True


def specs(options: RunOptions) -> Iterator[Spec]:
    """What a block asks to open, the reference first."""
    shared = Spec("", str(options.checkpoint), options.total_threads, options.device)
    for own in ("sentence-transformers", "torch"):
        if own in options.contestants:
            yield replace(shared, kind=own)
    if options.bundle:
        yield from _graph_specs(options, options.bundle, shared)
    for peer in PEERS:
        if peer in options.contestants:
            yield from _peer_specs(options, replace(shared, kind=peer, environments=str(options.environments)))
    if "triton" in options.contestants:
        several = len({server.url for server in options.servers}) > 1
        for server in dict.fromkeys(options.servers):
            yield replace(
                shared,
                kind="triton",
                url=server.url,
                model=server.model,
                clients=server.clients,
                texts_per_request=server.texts_per_request,
                one_of_many=several,
            )


def _peer_specs(options: RunOptions, spec: Spec) -> Iterator[Spec]:
    """A server's peer is asked as our servers are; one that encodes in a process of its own is itself."""
    if variants()[spec.kind].command is None:
        yield spec
        return
    for clients, size in dict.fromkeys(options.loads):
        yield replace(spec, clients=clients, texts_per_request=size)


def _graph_specs(options: RunOptions, bundle: Path, shared: Spec) -> Iterator[Spec]:
    engines = [name for name in GRAPHS if name in options.contestants]
    layouts = options.layouts or read_bundle(bundle).layouts
    for engine in engines:
        held = ("packed",) if engine == "native" else layouts  # its files have no other
        for precision, layout, sessions in product(options.precisions, held, options.sessions):
            flavour = precision.partition("-")[2]
            if not flavour or flavour in FLAVOURS[engine]:
                yield replace(
                    shared, kind=engine, bundle=str(bundle), precision=precision, layout=layout, sessions=sessions
                )


def make_cases(options: RunOptions, contestants: Sequence[Contestant], workloads: Sequence[Workload]) -> list[Case]:
    """The rows of a block: the grid on every corpus, and a few on texts of equal length."""
    rows = [
        (contestant, work, workload)
        for workload in workloads
        for contestant in contestants
        for work in (_flat_works(contestant) if workload.corpus.flat else _works(contestant, options))
    ]
    return [
        Case(
            contestant,
            work,
            workload,
            options.device,
            place,
            contestant.name == baseline.NAME and work.policy is None,
            options.block,
        )
        for place, (contestant, work, workload) in enumerate(rows)
    ]


def _flat_works(contestant: Contestant) -> Iterator[Work]:
    for name, policies in _FLAT:
        if contestant.name.startswith(name):
            yield from (Work(policy) for policy in policies if policy in contestant.policies)
            return


def _works(contestant: Contestant, options: RunOptions) -> Iterator[Work]:
    asked = (None, *options.policies)
    for policy in contestant.policies:
        if policy not in asked:
            continue
        sizes = contestant.own_rows if policy is None else (ROWS_PER_BATCH,)
        yield from (Work(policy, rows_per_batch=rows) for rows in sizes)
        if options.apart and contestant.tokenises_apart and policy in _APART:
            yield Work(policy, tokenised=True)


def make_workloads(options: RunOptions, judge: Contestant, say: Callable[[str], None]) -> list[Workload]:
    """The corpora, and texts of one length, all with the reference's vectors."""
    count_tokens, max_tokens = token_counter(options)
    corpora = [drawn(corpus, options) for corpus in options.corpora]
    if options.flat:
        flat = equal_lengths(options.corpora[0], count_tokens)
        if flat is None:
            say("no flat case: too few texts of one length")
        else:
            corpora.append(drawn(flat, options))
    reference = reference_of(judge)
    return [
        make_workload(
            corpus,
            lengths := count_tokens(corpus.texts),
            max_tokens,
            reference,
            judge.name,
            model_flop(options.checkpoint, lengths),
        )
        for corpus in corpora
    ]


def reference_of(judge: Contestant) -> Callable[[Sequence[str]], Vectors]:
    """What gives the right vectors of any texts: the contestant that judges the others."""
    work = Work(judge.policies[0] if judge.name == baseline.NAME else BatchPolicy.TOKEN_BUDGET)

    def reference(texts: Sequence[str]) -> Vectors:
        judge.prepare(texts, work)
        return judge.run(work)

    return reference


def questions_of(options: RunOptions, judge: Contestant) -> Questions | None:
    """What is asked about quality, where there are rated pairs."""
    if options.pairs is None:
        return None
    return make_questions("STS-B test", options.pairs, reference_of(judge), options.settings.seed)


def drawn(corpus: Corpus, options: RunOptions) -> Corpus:
    """As many of its texts as the block asks for, in random order."""
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


def placeholder(name: str, place: int, options: RunOptions, workload: Workload) -> Record:
    """What is known of a row that cannot be run."""
    return {
        "contestant": name,
        "policy": "own",
        "batch": "",
        "tokenisation_inside": True,
        "place": place,
        "baseline": False,
        **options.block,
        "device_asked": options.device,
        "corpus": workload.corpus.name,
        "corpus_source": workload.corpus.source,
        "texts": len(workload.corpus.texts),
    }
