"""What the Sentence-BERT paper names as its reason to exist (section 1): the most similar pair among 10,000 sentences.

A cross-encoder has to read every pair, n (n - 1) / 2 of them: it is timed on a sample and extrapolated, which each
figure says. Encoders read each sentence once: they are timed whole, and so are the search for the pair and the
hierarchical clustering of all vectors. Cross-encoder and SBERT-base are BERT-base with random weights, since weights
decide no speed; the clusters are those of a real model where a bundle is given.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.corpus import Corpus
from bench.fields import PAIR_SEARCH
from bench.records import Record, Writer, run_conditions
from bench.run import Say
from sentport.encoder import Encoder, Vectors
from sentport.errors import SentportError
from sentport.search.clusters import agglomerative, summary
from sentport.search.collection import Collection, collection, limited_threads
from sentport.search.pairs import similar_pairs

T = TypeVar("T")

SENTENCES = 10_000
_ROWS = 32
_THRESHOLD = 0.7


@dataclass(frozen=True, slots=True)
class PairSearch:
    """What is measured.

    Attributes:
        corpus: The sentences.
        tokenizer: ``tokenizer.json`` of an uncased BERT.
        bundle: A real encoder's, timed too, whose vectors are searched and clustered; None = those of SBERT-base.
        device: ``cpu`` or ``cuda``, of the BERT models.
        threads: Compute threads, on a CPU.
        pairs: Pairs that the cross-encoder reads.
        encoded: Sentences that SBERT-base reads; fewer than all are extrapolated, and said so.
    """

    corpus: Corpus
    tokenizer: Path
    bundle: Path | None
    device: str
    threads: int
    pairs: int = 256
    encoded: int = SENTENCES


def measure(options: PairSearch, out: Path, say: Say) -> Path:
    """Time every step and write raw records.

    Raises:
        SentportError: When there are too few sentences, or the device is not there.
    """
    texts = options.corpus.texts
    if len(texts) < 2:
        raise SentportError(f"corpus {options.corpus.name} has 1 text, of which no pair can be made; give two or more")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise SentportError("device cuda was asked for, but torch finds no CUDA; `sentport doctor` tells what lacks")
    shared = run_conditions()
    shared |= {"threads": options.threads, "corpus_source": options.corpus.source}
    bert = {
        "device": options.device,
        "device_name": torch.cuda.get_device_name() if options.device == "cuda" else shared["cpu"],
    }
    cpu = {"device": "cpu", "device_name": shared["cpu"]}
    torch.set_num_threads(options.threads)
    with Writer(out, shared, PAIR_SEARCH) as writer, limited_threads(options.threads):

        def step(name: str, what: str, place: Record, seconds: float, measured: int, whole: int) -> None:
            say(f"{name}: {seconds:.2f} s for {measured:,} of {whole:,}")
            figures = {
                "seconds": seconds,
                "measured": measured,
                "whole": whole,
                "whole_seconds": seconds * whole / measured,
            }
            writer.write("step", {"step": name, "what": what, **place, **figures})

        count = len(texts) * (len(texts) - 1) // 2
        seconds = cross_encode(options, say)
        step("cross-encoder", "pairs read by BERT-base", bert, seconds, options.pairs, count)
        vectors, seconds = _sbert(options, say)
        step("SBERT-base", "sentences read by BERT-base, smart batching", bert, seconds, len(vectors), len(texts))
        if options.bundle:
            vectors, seconds, what = _bundle(options.bundle, options, texts)
            step("bundle", what, cpu, seconds, len(texts), len(texts))
        held = collection(np.arange(len(vectors)), vectors, list(texts[: len(vectors)]), "cosine")
        best, seconds = _timed(lambda: similar_pairs(held, 1))
        say(f"most similar: {' / '.join(texts[row] for row in best.rows[0])}")
        compared = len(vectors) * (len(vectors) - 1) // 2
        step("similar pair", "pairs compared by cosine", cpu, seconds, compared, count)
        seconds, what = _cluster(held)
        step("clusters", what, cpu, seconds, len(vectors), len(vectors))
    return writer.path


def cross_encode(options: PairSearch, say: Say) -> float:
    """Seconds of the cross-encoder over its sample of pairs, sorted by length, so at its best."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from bench.table7_models import bert_base
    from sentport.tokenizer import Tokenizer

    model = bert_base(pairs=True).to(options.device)
    tokenizer = Tokenizer.from_file(options.tokenizer, 128)
    draw = random.Random(5)
    pairs = [draw.sample(options.corpus.texts, 2) for _ in range(options.pairs)]

    def read() -> None:
        first, second = (tokenizer.encode([pair[side] for pair in pairs]).rows for side in (0, 1))
        rows = sorted(([*one, *other[1:]] for one, other in zip(first, second, strict=True)), key=len)
        for start in range(0, len(rows), _ROWS):
            batch = rows[start : start + _ROWS]
            ids = pad_sequence([torch.tensor(row) for row in batch], batch_first=True).to(options.device)  # [B, T]
            lengths = torch.tensor([len(row) for row in batch], device=options.device)
            mask = torch.arange(ids.shape[1], device=options.device) < lengths[:, None]
            model(input_ids=ids, attention_mask=mask).logits.cpu()

    with torch.inference_mode():
        say("warming up the cross-encoder")
        read()
        return _timed(read)[1]


def _sbert(options: PairSearch, say: Say) -> tuple[Vectors, float]:
    from bench.table7_models import BertBase
    from sentport.scheduler import BatchPolicy

    encode = BertBase(options.tokenizer, options.device, BatchPolicy.SMART)
    say("warming up SBERT-base")
    encode(options.corpus.texts[: 2 * _ROWS])
    return _timed(lambda: encode(options.corpus.texts[: options.encoded]))


def _bundle(bundle: Path, options: PairSearch, texts: Sequence[str]) -> tuple[Vectors, float, str]:
    with Encoder(bundle, threads=options.threads) as encoder:
        encoder.encode(list(texts[: 2 * _ROWS]))
        vectors, seconds = _timed(lambda: encoder.encode(list(texts)))
        info = encoder.info
    return vectors, seconds, f"sentences read by {bundle.stem}, {info.engine} {info.precision} {info.layout}"


def _cluster(held: Collection) -> tuple[float, str]:
    labels, seconds = _timed(lambda: agglomerative(held, threshold=_THRESHOLD))
    found = summary(held, labels)
    return seconds, f"sentences clustered hierarchically, average cosine {_THRESHOLD}: {found.clusters} clusters"


def _timed(do: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    found = do()
    return found, time.perf_counter() - start
