"""``python -m bench.training --base FOLDER``: how fast does `sentport train` train beside sentence-transformers?

Both train the same base on the train split of STS Benchmark by the squared error of the cosine, with the same batch
size, steps, learning rate and warm-up; sentence-transformers once with its default sampler, and once with transformers'
LengthGroupedSampler, which its trainer takes as a batch sampler, told each pair's longer text in tokens. Rounds are
whole trainings from the base, a seed each, the three in turn, after a short one of each that does not count. Seconds
are those of the training alone: texts to tokens and all steps, without reading the base and saving; the lengths for the
grouping sampler are counted outside of its seconds. The models of the last round are scored on the dev split. One JSON
record goes to stdout.

A grouping sampler sorts whole stretches of the data, so a number of steps that cuts a stretch short measures its
longest batches alone: 50 steps, or a multiple of it, are whole stretches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.corpus import DATA_VARIABLE
from bench.records import Record, run_conditions
from sentport.cli import main as sentport
from sentport.errors import SentportError
from sentport.evaluation import StsPairs, read_sts, spearman
from sentport.evaluation.metrics import cosine_pairs
from sentport.hardware import available_cores

OURS, DEFAULT, GROUPED = "sentport", "sentence-transformers", "sentence-transformers, grouped by length"
_SPLIT = "sts_raw/STSBenchmark/{}.tsv"
_TOP_SCORE = 5.0
_RAMP = 0.1
_WARM_UP_STEPS = 5  # before the clock: libraries are loaded, memory is taken
_RECIPE = """\
base = "{base}"

[[data]]
format = "sts"
files = ["{file}"]

[objective]
kind = "regression"

[training]
batch_size = {batch_size}
steps = {steps}
learning_rate = {learning_rate}
warmup = {warmup}
seed = {seed}
checkpoint_every = {steps}
"""


@dataclass(frozen=True)
class Work:
    """What all three do.

    Attributes:
        base: Checkpoint folder.
        data: The folder of the data files.
        batch_size: Pairs of a step.
        steps: Steps of a training.
        learning_rate: Its peak.
        threads: Compute threads.
    """

    base: Path
    data: Path
    batch_size: int
    steps: int
    learning_rate: float
    threads: int

    def pairs(self, split: str) -> StsPairs:
        """A split of STS Benchmark."""
        return read_sts(self.data / _SPLIT.format(split))


# Trains with a seed into a folder to be made; returns seconds.
Train = Callable[[int, Path], float]


def main(argv: list[str] | None = None) -> int:
    """Measure and print the record."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--base", type=Path, required=True, help="checkpoint folder, such as all-MiniLM-L6-v2's")
    add("--data", type=Path, default=os.environ.get(DATA_VARIABLE), help=f"evaluation data (default: ${DATA_VARIABLE})")
    add("--batch-size", type=int, default=16, help="pairs of a step (%(default)s)")
    add("--steps", type=int, default=50, help="steps of a training (%(default)s)")
    add("--rounds", type=int, default=3, help="trainings of each (%(default)s)")
    add("--learning-rate", type=float, default=2e-5, help="its peak (%(default)s)")
    add("--threads", type=int, default=available_cores(), help="compute threads (default: the cores allowed)")
    options = parser.parse_args(argv)
    try:
        if options.data is None:
            raise SentportError(f"name the evaluation data with --data, or in {DATA_VARIABLE}")
        size = options.batch_size, options.steps, options.learning_rate, options.threads
        with TemporaryDirectory(prefix="sentport-training-") as folder, redirect_stdout(sys.stderr):
            record = measure(Work(options.base, options.data, *size), options.rounds, Path(folder))
    except SentportError as error:
        print(f"bench.training: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(record, ensure_ascii=False))
    return 0


def measure(work: Work, rounds: int, folder: Path) -> Record:
    """Everything that is measured, as one record."""
    for name, train in _trainers(replace(work, steps=_WARM_UP_STEPS)).items():
        train(0, folder / f"{name}-warm-up")
    trainers = _trainers(work)
    names = list(trainers)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            taken = trainers[name](number + 1, folder / f"{name}-{number}")
            seconds[name].append(taken)
            print(f"round {number + 1}: {name} {taken:.1f} s", file=sys.stderr, flush=True)
    sentences = 2 * work.batch_size * work.steps
    dev = work.pairs("dev")
    ours = statistics.median(seconds[OURS])
    return {
        **run_conditions(),
        "threads": work.threads,
        "base": work.base.name,
        "data": _SPLIT.format("train"),
        "batch_size": work.batch_size,
        "steps": work.steps,
        "learning_rate": work.learning_rate,
        "seconds": seconds,
        "sentences_per_second": {name: sentences / statistics.median(taken) for name, taken in seconds.items()},
        # Of the same round, so that a slow minute of the machine weighs on both.
        "speed_of_ours_by_round": {
            name: [theirs / own for theirs, own in zip(seconds[name], seconds[OURS], strict=True)] for name in names[1:]
        },
        "speed_of_ours": {name: statistics.median(seconds[name]) / ours for name in names[1:]},
        "dev_spearman": {name: _score(folder / f"{name}-{rounds - 1}", dev) for name in names},
    }


def _trainers(work: Work) -> dict[str, Train]:
    return {OURS: _ours(work), DEFAULT: _theirs(work, grouped=False), GROUPED: _theirs(work, grouped=True)}


def _ours(work: Work) -> Train:
    def train(seed: int, out: Path) -> float:
        recipe = out.with_suffix(".toml")
        values = {**vars(work), "file": _SPLIT.format("train"), "warmup": _RAMP, "seed": seed}
        recipe.write_text(_RECIPE.format(**values), encoding="utf-8")
        options = ["--data", str(work.data), "--threads", str(work.threads), "--device", "cpu", "-q"]
        if code := sentport(["train", str(recipe), "--out", str(out), *options]):
            raise SentportError(f"`sentport train` ended with {code}")
        record = json.loads((out / "training.json").read_text(encoding="utf-8"))
        return float(record["seeds"][0]["seconds"])

    return train


def _theirs(work: Work, *, grouped: bool) -> Train:
    def train(seed: int, out: Path) -> float:
        import torch
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.losses import CosineSimilarityLoss

        torch.set_num_threads(work.threads)
        model = SentenceTransformer(str(work.base), device="cpu")
        pairs = work.pairs("train")
        texts = {"sentence1": list(pairs.sentences1), "sentence2": list(pairs.sentences2)}
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(out.with_suffix(".run")),
            per_device_train_batch_size=work.batch_size,
            max_steps=work.steps,
            learning_rate=work.learning_rate,
            warmup_steps=_RAMP,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **({"batch_sampler": _by_length(model.tokenizer, pairs)} if grouped else {}),
        )
        trainer = SentenceTransformerTrainer(
            model,
            arguments,
            Dataset.from_dict({**texts, "score": pairs.scores / _TOP_SCORE}),
            loss=CosineSimilarityLoss(model),
        )
        result = trainer.train()
        model.save(str(out))
        return float(result.metrics["train_runtime"])

    return train


def _by_length(tokenizer: Any, pairs: StsPairs) -> Callable[..., Any]:
    """Transformers' sampler as sentence-transformers takes one of its user's."""
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from transformers.trainer_pt_utils import LengthGroupedSampler

    first, second = (tokenizer(list(texts))["input_ids"] for texts in (pairs.sentences1, pairs.sentences2))
    lengths = [max(len(one), len(other)) for one, other in zip(first, second, strict=True)]

    def sampler(_: object, *, batch_size: int, generator: Any = None, **others: Any) -> DefaultBatchSampler:
        rows = LengthGroupedSampler(batch_size, lengths=lengths, generator=generator)
        return DefaultBatchSampler(rows, batch_size=batch_size, generator=generator, **others)

    return sampler


def _score(folder: Path, pairs: StsPairs) -> float:
    """Spearman's correlation x 100 of a checkpoint, computed by sentence-transformers for all three."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    first, second = (model.encode(list(texts)) for texts in (pairs.sentences1, pairs.sentences2))
    return 100 * spearman(cosine_pairs(first, second), pairs.scores)


if __name__ == "__main__":
    sys.exit(main())
