"""``python -m bench.bulk``: is bulk encoding flat in memory, and as fast as the encoder in memory?

The sentences: distinct ones of both caption sets and of the Wikipedia sentences, shuffled; where more are asked for,
the first half of one sentence's words goes on with the second half of another's, which keeps the mix of lengths. Memory
is that of a ``sentport encode`` process over all of them, at a tenth and at the end. Throughput is taken over slices,
bulk and the encoder in turn, each slice once by either, tokenisation inside; a bulk slice includes opening its journal,
writing its shards and putting the output in place. One JSON record goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.corpus import DATA_VARIABLE
from bench.records import Record, run_conditions
from sentport.bulk.inputs import find_inputs
from sentport.bulk.job import Options, encode_files
from sentport.bulk.output import find_output
from sentport.encoder import Encoder
from sentport.errors import SentportError
from sentport.inputs import read_lines

_PARTS = 100
_STRIDE = 7919
_TINY_WORDS = 5000
_SAMPLE_SECONDS = 0.05


def main(argv: list[str] | None = None) -> int:
    """Measure and print the record."""
    parser = argparse.ArgumentParser(prog="python -m bench.bulk", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--model", help="bundle (default: a tiny random BERT, made for the run)")
    add("--data", type=Path, default=os.environ.get(DATA_VARIABLE), help=f"evaluation data (default: ${DATA_VARIABLE})")
    add("--rows", type=int, default=1_000_000, help="sentences of the memory run (%(default)s)")
    add("--slices", type=int, default=9, help="slices for the throughput (%(default)s)")
    add("--slice-rows", type=int, default=20_000, help="sentences of a slice (%(default)s)")
    add("--threads", type=int, help="compute threads (default: the cores allowed)")
    add("--seed", type=int, default=11, help="of the shuffle (%(default)s)")
    options = parser.parse_args(argv)
    try:
        with TemporaryDirectory(prefix="sentport-bulk-") as folder:
            print(json.dumps(measure(options, Path(folder)), ensure_ascii=False))
    except SentportError as error:
        print(f"bench.bulk: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def measure(options: argparse.Namespace, folder: Path) -> Record:
    """Everything that is measured, as one record."""
    if options.data is None:
        raise SentportError(f"name the evaluation data with --data, or in {DATA_VARIABLE}")
    distinct = source_sentences(options.data, options.seed)
    bundle = Path(options.model) if options.model else make_tiny_bundle(folder, distinct)
    slices = _throughput(bundle, distinct, options, folder)
    file = folder / "all.txt"
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(f"{text}\n" for text in islice(endless_sentences(distinct), options.rows))
    return {
        **run_conditions(),
        "model": bundle.name,
        "recipe": f"{len(distinct)} distinct sentences, seed {options.seed}; beyond them halves of two",
        **slices,
        "rows": options.rows,
        **_memory(bundle, file, options, folder / "vectors"),
    }


def source_sentences(data: Path, seed: int) -> list[str]:
    """Distinct sentences, shuffled."""
    captions = [data / "captions" / f"flickr{size}_groups.tsv" for size in ("8k", "30k")]
    found = dict.fromkeys(text for file in captions for group in read_lines(str(file)) for text in group.split("\t"))
    found |= dict.fromkeys(read_lines(str(data / "unlabelled" / "wikipedia_sentences.txt")))
    texts = [text for text in found if text.strip()]
    random.Random(seed).shuffle(texts)
    return texts


def endless_sentences(distinct: Sequence[str]) -> Iterator[str]:
    """The sentences, and then, round after round, halves of two."""
    yield from distinct
    shift = 0
    while True:
        shift += _STRIDE
        for place, text in enumerate(distinct):
            first, second = text.split(), distinct[(place + shift) % len(distinct)].split()
            yield " ".join(first[: len(first) // 2] + second[len(second) // 2 :])


def make_tiny_bundle(folder: Path, texts: Sequence[str]) -> Path:
    """A random BERT of two layers and width 32 with the commonest words of the texts, exported."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    counts = Counter(word for text in texts[:50_000] for word in text.lower().split())
    letters = sorted({letter for word in counts for letter in word})
    words = [word for word, _ in counts.most_common(_TINY_WORDS) if len(word) > 1 and word.isalpha()]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters), *words]
    plain = folder / "plain"
    plain.mkdir()
    (plain / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab=str(plain / "vocab.txt"), model_max_length=128).save_pretrained(plain)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=128, **shape)
    BertModel(config, add_pooling_layer=False).save_pretrained(plain)
    chain = [Transformer(str(plain), max_seq_length=128), Pooling(32), Normalize()]
    SentenceTransformer(modules=chain, device="cpu").save(str(folder / "tiny"))
    out = folder / "tiny.bundle"
    subprocess.run(
        [sys.executable, "-m", "sentport", "export", folder / "tiny", "--out", out, "-q"], check=True, stdout=sys.stderr
    )
    return out


def _throughput(bundle: Path, distinct: Sequence[str], options: argparse.Namespace, folder: Path) -> Record:
    """Sentences per second of either, slice by slice."""
    stream = endless_sentences(distinct)
    bulk, in_memory = [], []
    with Encoder(bundle, threads=options.threads, on_truncate="allow") as encoder:
        encoder.encode(list(islice(stream, 512)))  # warm-up
        for number in range(options.slices):
            texts = list(islice(stream, options.slice_rows))
            file, out = folder / "slice.txt", folder / f"slice-{number}"
            file.write_text("\n".join(texts), encoding="utf-8")
            inputs, output = find_inputs([str(file)]), find_output(out)
            timed: list[Callable[[], object]] = [
                partial(encode_files, encoder, inputs, output, Options(on_truncate="allow")),
                partial(encoder.encode, texts),
            ]
            seconds = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                start = time.perf_counter()
                timed[which]()
                seconds[which] = time.perf_counter() - start
            bulk.append(len(texts) / seconds[0])
            in_memory.append(len(texts) / seconds[1])
            print(f"slice {number}: bulk {bulk[-1]:,.0f}/s, in memory {in_memory[-1]:,.0f}/s", file=sys.stderr)
        return {
            "encoder": asdict(encoder.info),
            "slice_rows": options.slice_rows,
            "bulk_sentences_per_second": bulk,
            "in_memory_sentences_per_second": in_memory,
            "median_ratio": statistics.median(bulk) / statistics.median(in_memory),
        }


def _memory(bundle: Path, file: Path, options: argparse.Namespace, out: Path) -> Record:
    """Resident memory of a run by the command line, while its parts appear."""
    parts = min(_PARTS, options.rows)
    command = [
        sys.executable,
        "-m",
        "sentport",
        "encode",
        str(bundle),
        "--input",
        str(file),
        "--output",
        str(out),
        "-q",
    ]
    command += ["--shard-rows", str(-(-options.rows // parts)), "--on-truncate", "allow"]
    if options.threads:
        command += ["--threads", str(options.threads)]
    start = time.perf_counter()
    process = subprocess.Popen(command)
    samples: list[tuple[int, int]] = []  # finished parts, bytes
    while process.poll() is None:
        finished = len(list(find_output(out).job_folder.glob("part-*")))
        samples.append((finished, _resident(process.pid)))
        time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        raise SentportError(f"`sentport encode` ended with {process.returncode}")
    seconds = time.perf_counter() - start
    # A few parts' worth of samples each: memory moves within a block as its batches come and go.
    tenth = max((size for done, size in samples if 0.05 * parts <= done <= 0.15 * parts), default=0)
    end = max((size for done, size in samples if done >= 0.95 * parts), default=0)
    return {
        "seconds": seconds,
        "resident_mb_at_a_tenth": tenth / 2**20,
        "resident_mb_at_the_end": end / 2**20,
        "growth": end / tenth - 1 if tenth else None,
        "samples": len(samples),
    }


def _resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


if __name__ == "__main__":
    sys.exit(main())
