"""The command: ``python3 -m bench.gpu_check FOLDER``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import BertConfig

from bench.gpu_check.bert import load_checkpoint, seeded_model
from bench.gpu_check.contestants import ROWS, contestants
from bench.gpu_check.measure import Budget, measure_ceiling, set_precision
from bench.gpu_check.policies import arrival
from bench.gpu_check.records import Writer, conditions, table
from bench.gpu_check.runners import DTYPES, Model
from bench.gpu_check.session import NO_TIME, Session, Settings, Workload, reference_vectors
from bench.gpu_check.workload import GRAPHS, CheckError, Folder, read_folder

BASE_SEED = 11
GOLDEN = "golden vectors: fp32 on a CPU, each text alone"
ARRIVAL = "transformers, fp32, arrival order, same device"
# (token budget of a batch that fills the device, budget of a small batch)
BUDGETS = {"cuda": (16384, 1024), "cpu": (2048, 512)}
SETTINGS = {
    "cuda": Settings(warmup=2, repeats=7, seed=5),
    "cpu": Settings(warmup=1, repeats=5, seed=5),
    "smoke": Settings(warmup=1, repeats=2, seed=5),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the check and returns the exit code: 0 done, 2 could not run as asked."""
    options = _parser().parse_args(arguments)
    try:
        device = _device(options.device)
        folder = read_folder(options.folder)
        run(folder, device, options.out or options.folder / f"records-{device.type}.jsonl", options.minutes)
    except CheckError as problem:
        print(f"gpu_check: {problem}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.gpu_check",
        description="Sentences per second of BERT encoders on one GPU, against its matrix-product ceiling.",
        epilog="example: python3 -m bench.gpu_check build/gpu_check --out records.jsonl",
    )
    parser.add_argument("folder", type=Path, help="made by python3 -m bench.gpu_check.prepare")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one, else cpu")
    parser.add_argument("--out", type=Path, help="JSON lines (default: FOLDER/records-<device>.jsonl)")
    parser.add_argument("--minutes", type=float, default=8.0, help="budget of the whole check (default: 8)")
    return parser


def _device(asked: str | None) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise CheckError("device cuda was asked for and torch sees no GPU; leave --device out, or give --device cpu")
    return torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))


def run(folder: Folder, device: torch.device, out: Path, minutes: float) -> None:
    """Measures ceilings and all workloads within the budget, writes the records and prints the table."""
    budget = Budget.of_minutes(minutes)
    smoke = bool(folder.meta["smoke"])
    fixed = {**conditions(device), "smoke": smoke, "tf32": set_precision(), "budget_minutes": minutes}
    settings = SETTINGS["smoke" if smoke else device.type]
    with Writer(out, fixed) as writer:
        ceilings: dict[str, float] = {}
        for precision in DTYPES:
            record = measure_ceiling(device, precision, smoke)
            writer.write("ceiling", record)
            ceilings[precision] = 1e12 * record["ceiling_tflops"]
            print(f"ceiling {precision}: {record['ceiling_tflops']:.4g} TFLOP/s on {fixed['device_name']}", flush=True)
        session = Session(writer, ceilings, settings, budget)
        _run_workloads(session, folder, device, smoke)
        print(table(writer.rows))
    print(f"\n{len(writer.rows)} rows in {out}; {60 * minutes - budget.left_s:.0f} s")


def _run_workloads(session: Session, folder: Folder, device: torch.device, smoke: bool) -> None:
    """Runs the four workloads, the two most telling first: short texts on a small model, long ones on a large."""
    small = Model(folder.meta["model"], load_checkpoint(str(folder.path / "model")), device, folder.path / GRAPHS)
    shape = f"{'two-layer' if smoke else 'BERT-base'} shape, random weights, seed {BASE_SEED}"
    base = Model(shape, seeded_model(base_config(smoke, small.source.config.vocab_size), BASE_SEED), device)
    field = contestants(*BUDGETS[device.type])
    for model, name in ((small, "stsb"), (base, "long"), (base, "stsb"), (small, "long")):
        corpus = folder.corpora[name]
        golden = folder.golden[name] if model is small else None
        if golden is None and session.fastest_s(model, corpus, arrival(ROWS)) > session.budget.left_s:
            session.skip(model.name, corpus, field, NO_TIME)
            continue
        expected = reference_vectors(model, corpus) if golden is None else golden
        session.run(Workload(model, corpus, expected, ARRIVAL if golden is None else GOLDEN), field)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def base_config(smoke: bool, vocab_size: int) -> BertConfig:
    """Returns BERT-base's configuration, or that of a two-layer model for a smoke run."""
    if smoke:
        return BertConfig(
            vocab_size=vocab_size, num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64
        )
    return BertConfig(vocab_size=vocab_size)


if __name__ == "__main__":
    sys.exit(main())
