"""Makes the folder that the check reads: ``python3 -m bench.gpu_check.prepare MODEL FOLDER --name NAME --data DIR``.

Runs where the model and the texts are. Weights are stored in fp16, which halves what has to travel; the golden vectors
come from those rounded weights, computed in fp32, so that every contestant is compared with the very same function.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from bench.gpu_check.bert import encode_with_transformers, load_checkpoint
from bench.gpu_check.measure import worst_cosine
from bench.gpu_check.workload import (
    GRAPHS,
    LENGTHS_FILE,
    CheckError,
    Corpus,
    Floats,
    Folder,
    long_lengths,
    random_corpus,
    stored_lengths,
    write_folder,
)

STSB_TEST = Path("sts_raw") / "STSBenchmark" / "test.tsv"
SEEDS = {"stsb": 31, "long": 32}
# A smoke folder: two batches of 32 rows of one corpus, a few rows of the other cut to an eighth, fit for a test.
SMOKE_TEXTS = {"stsb": 48, "long": 6}
SMOKE_SHORTENING = 8


def main(arguments: list[str] | None = None) -> int:
    """Makes the folder and returns the exit code: 0 done, 2 could not run as asked."""
    options = _parser().parse_args(arguments)
    try:
        if options.write_lengths:
            write_lengths(options.model, _data(options.data))
        folder = prepare(options.model, options.folder, options.name, options.data, options.smoke, options.graphs)
    except CheckError as problem:
        print(f"gpu_check.prepare: {problem}", file=sys.stderr)
        return 2
    size_mb = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file()) / 1e6
    print(f"{folder.path}: {size_mb:.1f} MB, {json.dumps(folder.meta)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.gpu_check.prepare",
        description="Makes the folder that python3 -m bench.gpu_check reads.",
        epilog="example: python3 -m bench.gpu_check.prepare MODEL build/gpu_check --name all-MiniLM-L6-v2 --data DATA",
    )
    parser.add_argument("model", type=Path, help="checkpoint folder of a BERT encoder (all-MiniLM-L6-v2)")
    parser.add_argument("folder", type=Path, help="to be made; an earlier one is replaced")
    parser.add_argument(
        "--data", type=Path, help=f"folder with {STSB_TEST}; without it, random ids of the same lengths"
    )
    parser.add_argument("--name", required=True, help="the model's name, for the records")
    parser.add_argument("--graphs", type=Path, help="a bundle's graphs/ of this model, for ONNX Runtime and TensorRT")
    parser.add_argument("--smoke", action="store_true", help="a few texts, for tests of the check itself")
    parser.add_argument("--write-lengths", action="store_true", help="write the committed length lists anew")
    return parser


def prepare(model_folder: Path, path: Path, name: str, data: Path | None, smoke: bool, graphs: Path | None) -> Folder:
    """Writes a prepared folder aside and puts it in the place of ``path``.

    Raises:
        CheckError: ``path`` holds something else, the texts do not have the committed lengths, or there is no graph.
    """
    exported = [] if graphs is None else sorted(graphs.glob("padded-*-portable.onnx"))
    if graphs is not None and not exported:
        raise CheckError(f"{graphs} holds no padded-*-portable.onnx; expected a bundle's graphs/ folder")
    if path.exists() and not (path / "meta.json").is_file() and any(path.iterdir()):
        raise CheckError(f"{path} exists and is no prepared folder; name a new folder or an earlier prepared one")
    aside = path.with_name(path.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "model").mkdir(parents=True)
    if exported:
        (aside / GRAPHS).mkdir()
    for file in exported:
        shutil.copy(file, aside / GRAPHS)
    original = load_checkpoint(str(model_folder))
    rounded = save_rounded(original, aside / "model")
    corpora = _corpora(model_folder, original.config.vocab_size, data, smoke)
    golden = {name: golden_vectors(rounded, corpus) for name, corpus in corpora.items()}
    some = corpora["stsb"].first(32)
    meta: dict[str, Any] = {
        "model": name,
        "smoke": smoke,
        "reference": "transformers, fp32, CPU, each text alone, weights rounded to fp16",
        "rounding_worst_cosine": worst_cosine(golden["stsb"][:32], golden_vectors(original, some)),
        "versions": {"torch": str(torch.__version__), "numpy": np.__version__},
    }
    write_folder(Folder(aside, meta, corpora, golden))
    if path.exists():
        shutil.rmtree(path)
    aside.rename(path)
    return Folder(path, meta, corpora, golden)


def save_rounded(model: BertModel, folder: Path) -> BertModel:
    """Saves ``model`` with fp16 weights and returns it as it will be read back: fp32 with those rounded weights."""
    half = BertModel(model.config, add_pooling_layer=False)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    return load_checkpoint(str(folder))


def golden_vectors(model: BertModel, corpus: Corpus) -> Floats:
    """Computes each text alone in fp32, ``[B, dim]``: nothing of batching or padding can be in these vectors."""
    vectors = []
    with torch.no_grad():
        for row in range(len(corpus.lengths)):
            ids = torch.from_numpy(corpus.gather(np.array([row])))[None]  # [1, L]
            vectors.append(encode_with_transformers(model, ids, torch.tensor([ids.shape[1]])))
    return torch.cat(vectors).numpy()


def _corpora(model_folder: Path, vocab_size: int, data: Path | None, smoke: bool) -> dict[str, Corpus]:
    lengths = {name: stored_lengths(name) for name in SEEDS}
    if smoke:
        lengths["long"] = lengths["long"] // SMOKE_SHORTENING
    corpora = {name: random_corpus(name, lengths[name], vocab_size, seed) for name, seed in SEEDS.items()}
    if data is not None:
        corpora["stsb"] = read_stsb(model_folder, data)
        found, committed = corpora["stsb"].lengths, lengths["stsb"]
        if not smoke and not np.array_equal(found, committed):
            raise CheckError(
                f"{data / STSB_TEST} gives {int(found.sum())} tokens in {len(found)} texts, the committed list has "
                f"{int(committed.sum())} in {len(committed)}; use the model that the list was made with, "
                "or --write-lengths"
            )
    if smoke:
        corpora = {name: corpus.first(SMOKE_TEXTS[name]) for name, corpus in corpora.items()}
    return corpora


def read_stsb(model_folder: Path, data: Path) -> Corpus:
    """Tokenises the sentences of the STS Benchmark's test set: file order, the two sentences of a pair in a row."""
    lines = (data / STSB_TEST).read_text(encoding="utf-8").splitlines()
    texts = [text for line in lines for text in line.split("\t")[1:3]]
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    # A saved tokenizer may pad or cut every text to one length, which is what this check is about.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    ids = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return Corpus("stsb", ids, lengths, "STS Benchmark test sentences, file order")


def write_lengths(model_folder: Path, data: Path) -> None:
    """Writes the committed length lists: token counts alone, no texts."""
    lists = {
        "stsb": {
            "what": "tokens, special ones included, of the STS Benchmark test sentences in file order, pair by pair; "
            "all-MiniLM-L6-v2's tokenizer",
            "lengths": read_stsb(model_folder, data).lengths.tolist(),
        },
        "long": {"what": "log-normal around 320, 64 to 512, seeded", "lengths": long_lengths().tolist()},
    }
    LENGTHS_FILE.write_text(json.dumps(lists, separators=(",", ":")) + "\n", encoding="utf-8")


def _data(data: Path | None) -> Path:
    if data is None:
        raise CheckError(f"--write-lengths reads {STSB_TEST}; name its folder with --data")
    return data


if __name__ == "__main__":
    sys.exit(main())
