"""The GPU check on a CPU: its numbers, its gate and its records, at sizes that take seconds."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from bench.gpu_check import __main__ as command
from bench.gpu_check import policies, prepare
from bench.gpu_check.attention import equal_length_sdpa, jagged_sdpa, probe_error
from bench.gpu_check.bert import Shape, mean_of_kept, seeded_model
from bench.gpu_check.contestants import Contestant, contestants
from bench.gpu_check.graphs import Absent, OnnxRuntimeRunner, graph_file
from bench.gpu_check.measure import Budget, judge, worst_cosine
from bench.gpu_check.records import Writer
from bench.gpu_check.runners import Model, PackedRunner, PaddedRunner, end_to_end, pad
from bench.gpu_check.session import NO_TIME, Session, Settings, Workload, reference_vectors
from bench.gpu_check.workload import Corpus, long_lengths, random_corpus, stored_lengths

SOURCE = Path(command.__file__).parent
VOCABULARY = 400
CONDITIONS = {
    *("format", "benchmark", "device", "device_name", "cpu", "sessions", "threads", "versions", "tokenisation_inside"),
    *("tf32", "budget_minutes", "date"),
}
ROW = {
    *("contestant", "precision", "layout", "batch_policy", "batch", "model", "corpus", "corpus_source", "texts"),
    *("tokens", "worst_cosine", "cosine_gate", "status", "reason"),
}
MEASURED = {
    *("device_s", "end_to_end_s", "sentences_per_s", "tokens_per_s", "padding_waste_percent", "useful_tflops"),
    *("computed_tflops", "ceiling_tflops", "percent_of_ceiling", "flop_formula", "warmup", "repeats", "order"),
    *("cosine_reference", "attention", "setup_s"),
}
CPU = torch.device("cpu")
# On a CPU, without TensorRT, from a folder without graphs.
NOT_RUN = {
    "CUDA graphs": "needs CUDA",
    "torch.compile": "needs CUDA",
    "onnxruntime": "the folder has no ",
    "TensorRT": "package tensorrt is absent: ",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine two threads wait for each other longer than these tiny products take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> Model:
    """A two-layer BERT on the CPU."""
    return Model("tiny", seeded_model(command.base_config(True, VOCABULARY), 1), CPU)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """A hundred rows with the lengths of the STS Benchmark."""
    return random_corpus("stsb", stored_lengths("stsb")[:100], VOCABULARY, 2)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package alone, beside a ``sentport`` that cannot be imported."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(SOURCE, root / "bench" / "gpu_check", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE.parent / "__init__.py", root / "bench")
    (root / "sentport").mkdir()
    (root / "sentport" / "__init__.py").write_text("raise RuntimeError('sentport was imported')\n")
    return root


@pytest.fixture(scope="module")
def smoke(checkout: Path) -> list[dict[str, Any]]:
    """Records of a whole smoke run: the folder made here, the check run as on a machine that has nothing else."""
    words = [f"w{number}" for number in range(VOCABULARY - 1)]
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(["[UNK]", *words])}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    seeded_model(command.base_config(True, VOCABULARY), 1).save_pretrained(checkout / "source")
    tokenizer.save(str(checkout / "source" / "tokenizer.json"))
    data = checkout / "data" / "sts_raw" / "STSBenchmark"
    data.mkdir(parents=True)
    draw = np.random.default_rng(4)
    lengths = np.minimum(stored_lengths("stsb")[:60], 30).reshape(30, 2)
    lines = ["\t".join(["1.0", *(" ".join(draw.choice(words, length)) for length in pair)]) for pair in lengths]
    (data / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source, folder, texts = (str(checkout / name) for name in ("source", "folder", "data"))
    assert prepare.main([source, folder, "--name", "tiny", "--data", texts, "--smoke"]) == 0
    printed = _python(checkout, "bench.gpu_check", "folder", "--device", "cpu", "--out", "records.jsonl")
    assert "% ceil" in printed
    assert "tiny on stsb (48 texts" in printed
    assert not (checkout / "records.jsonl.partial").exists()
    return [json.loads(line) for line in (checkout / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def _python(folder: Path, *arguments: str) -> str:
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", *arguments]
    done = subprocess.run(line, cwd=folder, env=alone, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_record_carries_its_conditions(smoke: list[dict[str, Any]]) -> None:
    """Each line stands alone; each row says what ran, on what, and how it was judged."""
    assert {record["kind"] for record in smoke} == {"ceiling", "observation", "row"}
    for record in smoke:
        assert record.keys() >= CONDITIONS
    for row in _rows(smoke):
        assert row.keys() >= ROW
        assert (row["status"] == "measured") == (row["reason"] is None)
        if row["status"] == "measured":
            assert row.keys() >= MEASURED
            assert row["device_s"]["min"] <= row["device_s"]["median"] <= row["device_s"]["max"]
            assert 0 <= row["padding_waste_percent"] < 100
            assert row["useful_tflops"] <= row["computed_tflops"]


def test_a_smoke_run_measures_every_contestant_or_says_why_not(smoke: list[dict[str, Any]]) -> None:
    """Four workloads, the same contestants in each; on a CPU only what needs CUDA is left out."""
    names = {contestant.name for contestant in contestants(*command.BUDGETS["cpu"])}
    workloads: dict[tuple[str, str], set[str]] = {}
    for row in _rows(smoke):
        workloads.setdefault((row["model"], row["corpus"]), set()).add(row["contestant"])
        reason = NOT_RUN.get(row["implementation"])
        assert row["status"] == ("not run" if reason else "measured")
        assert (row["reason"] or "").startswith(reason or "")
    assert list(workloads.values()) == [names] * 4
    observed = [record for record in smoke if record["kind"] == "observation"]
    assert len(observed) == sum(row["repeats"] for row in _rows(smoke) if row["status"] == "measured")


def test_all_vectors_hold_their_gate(smoke: list[dict[str, Any]]) -> None:
    """Golden vectors for the model from the folder, transformers' fp32 vectors for the other."""
    measured = [row for row in _rows(smoke) if row["status"] == "measured"]
    assert all(row["worst_cosine"] >= row["cosine_gate"] for row in measured)
    assert {row["cosine_reference"] for row in measured if row["model"] == "tiny"} == {command.GOLDEN}
    packed = [row for row in measured if row["layout"] == "packed"]
    assert {row["attention"] for row in packed} == {"equal-length runs"}
    assert all(row["padding_waste_percent"] == 0 for row in packed)


def test_it_imports_nothing_but_what_a_gpu_machine_has() -> None:
    """Standard library, numpy, torch, transformers; ``tokenizers`` only where the folder is made."""
    allowed = {*sys.stdlib_module_names, "numpy", "torch", "transformers", "bench"}
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                extra = {"tokenizers"} if file.name == "prepare.py" else set()
                assert module.split(".")[0] in allowed | extra, f"{file.name} imports {module}"
                assert not module.startswith("bench") or module.startswith("bench.gpu_check")


def test_packed_equals_padded(model: Model, corpus: Corpus) -> None:
    """The same vectors whatever the layout and the policy, row by row in arrival order."""
    expected = reference_vectors(model, corpus)
    seen = 0
    with torch.no_grad():
        for contestant in contestants(300, 100):
            if contestant.implementation in NOT_RUN or contestant.precision != "fp32":
                continue
            found = end_to_end(contestant.build(model, "fp32"), corpus, contestant.policy)
            np.testing.assert_allclose(found, expected, atol=2e-6)
            seen += 1
    assert seen == 8
    assert worst_cosine(expected, np.roll(expected, 1, axis=0)) < 0.9, "texts too alike for a check to mean anything"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_jagged_attention_is_right(dtype: torch.dtype) -> None:
    """The CUDA path for fp32 also runs on a CPU, so that its use of nested tensors is tested everywhere."""
    assert probe_error(jagged_sdpa, CPU, dtype, 2, 32) < (1e-5 if dtype == torch.float32 else 1e-2)
    assert probe_error(lambda q, k, v, packing: equal_length_sdpa(q, k, q, packing), CPU, dtype, 2, 32) > 0.1


def test_a_graph_runs_on_the_tensors_of_torch(both_layouts: Path) -> None:
    """ONNX Runtime bound to torch's memory gives what it gives from arrays."""
    model = Model("tiny", seeded_model(command.base_config(True, VOCABULARY), 1), CPU, both_layouts / "graphs")
    corpus = random_corpus("short", stored_lengths("stsb")[:40], 20, 5)
    runner = OnnxRuntimeRunner(model, "fp32")
    assert runner.names == ["input_ids", "attention_mask", "token_type_ids"]
    found = end_to_end(runner, corpus, policies.smart(16))
    session = onnxruntime.InferenceSession(str(graph_file(model, "fp32")), providers=["CPUExecutionProvider"])
    for row in range(len(corpus.lengths)):
        ids = corpus.gather(np.array([row]))[None]
        feed = dict(zip(runner.names, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))
        np.testing.assert_allclose(found[row], session.run(None, feed)[0][0], atol=2e-6)
    with pytest.raises(Absent, match="the folder has no fp16 graph"):
        graph_file(model, "fp16")


def test_graphs_travel_in_the_folder(both_layouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of layout padded; a folder without any is an error before anything is made."""
    source, folder = str(tmp_path / "source"), str(tmp_path / "folder")
    seeded_model(command.base_config(True, VOCABULARY), 1).save_pretrained(source)
    arguments = [source, folder, "--name", "tiny", "--smoke", "--graphs"]
    assert prepare.main([*arguments, str(both_layouts)]) == 2
    assert "expected a bundle's graphs/ folder" in capsys.readouterr().err
    assert prepare.main([*arguments, str(both_layouts / "graphs")]) == 0
    assert [file.name for file in (tmp_path / "folder" / "graphs").iterdir()] == ["padded-fp32-portable.onnx"]


def _mean_over_pads(model: Model, precision: str) -> PaddedRunner:
    module = model.module(precision)

    def encode(ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden = module(input_ids=ids).last_hidden_state
        return mean_of_kept(hidden, torch.ones_like(ids, dtype=torch.bool))

    return PaddedRunner(encode, model.device, {})


def _zeros(model: Model, precision: str) -> PaddedRunner:
    return PaddedRunner(lambda ids, lengths: torch.zeros(len(ids), 32), model.device, {})


def _twice_as_long(model: Model, precision: str) -> PaddedRunner:
    right = contestants(300, 100)[1].build(model, precision)
    return PaddedRunner(lambda ids, lengths: 2 * right.forward((ids, lengths)), model.device, {})


def _stops(model: Model, precision: str) -> PaddedRunner:
    raise RuntimeError("this device has no such kernel")


def _measure(
    tmp_path: Path, model: Model, corpus: Corpus, field: list[Contestant], minutes: float
) -> list[dict[str, Any]]:
    with Writer(tmp_path / "records.jsonl", {"device_name": "none"}) as writer:
        ceilings = {"fp32": 1e12, "bf16": 1e12, "fp16": 1e12}
        session = Session(writer, ceilings, Settings(1, 2, 3), Budget.of_minutes(minutes))
        session.run(Workload(model, corpus, reference_vectors(model, corpus), "transformers"), field)
    return [json.loads(line) for line in (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("build", "status", "reason"),
    [
        (_mean_over_pads, "rejected", "worst cosine"),
        (_zeros, "rejected", "worst cosine"),
        (_twice_as_long, "rejected", "length is off 1"),
        (_stops, "not run", "failed: RuntimeError: this device has no such kernel"),
    ],
)
def test_a_wrong_contestant_is_not_timed(
    build: Any,
    status: str,
    reason: str,
    tmp_path: Path,
    model: Model,
    corpus: Corpus,
) -> None:
    """It gets a row with the reason and no reading; the right one beside it is measured."""
    wrong = Contestant("wrong", "fp32", "padded", policies.arrival(32), build)
    right = Contestant("right", "fp32", "packed", policies.packed_budget(300), PackedRunner)
    records = _measure(tmp_path, model, corpus, [wrong, right], minutes=5)
    rows = {row["implementation"]: row for row in _rows(records)}
    assert rows["wrong"]["status"] == status
    assert reason in rows["wrong"]["reason"]
    assert "device_s" not in rows["wrong"]
    assert rows["right"]["status"] == "measured"
    assert {record["implementation"] for record in records if record["kind"] == "observation"} == {"right"}


def test_what_does_not_fit_the_budget_is_said(tmp_path: Path, model: Model, corpus: Corpus) -> None:
    """Every contestant has a row, also when no time is left."""
    rows = _rows(_measure(tmp_path, model, corpus, contestants(300, 100), minutes=0))
    assert len(rows) == len(contestants(300, 100))
    assert {row["reason"] for row in rows} == {NO_TIME, "needs CUDA"}


def test_an_interrupted_run_keeps_what_it_measured(tmp_path: Path) -> None:
    """Records are on the disk at once, under the name of an unfinished file."""
    out = tmp_path / "records.jsonl"
    with pytest.raises(KeyboardInterrupt), Writer(out, {}) as writer:
        writer.write("row", {"contestant": "first"})
        assert json.loads(writer.partial.read_text(encoding="utf-8"))["contestant"] == "first"
        raise KeyboardInterrupt
    assert not out.exists()
    assert writer.partial.read_text(encoding="utf-8").count("\n") == 1


def test_policies_hold_every_row_once_and_their_bounds() -> None:
    """On the committed lengths; sorting and budgets waste less than arrival order."""
    waste: dict[str, float] = {}
    for name in ("stsb", "long"):
        lengths = stored_lengths(name)
        for by_rows in (policies.arrival(32), policies.shuffled(32), policies.smart(32)):
            plan = by_rows.plan(lengths)
            _assert_complete(plan, lengths)
            assert max(len(batch.rows) for batch in plan) == 32
            computed = sum(batch.padded_rows * batch.padded_tokens for batch in plan)
            waste[f"{name} {by_rows.name}"] = 1 - int(lengths.sum()) / computed
        for by_tokens in (policies.token_budget(2048), policies.bucketed(2048)):
            plan = by_tokens.plan(lengths)
            _assert_complete(plan, lengths)
            assert max(batch.padded_rows * batch.padded_tokens for batch in plan) <= 2048
        packed = policies.packed_budget(2048).plan(lengths)
        _assert_complete(packed, lengths)
        assert max(int(lengths[batch.rows].sum()) for batch in packed) <= 2048
    assert waste["stsb smart"] < 0.05 < 0.35 < waste["stsb arrival"] < waste["stsb arrival, shuffled"]


def _assert_complete(plan: list[policies.Batch], lengths: np.ndarray) -> None:
    rows = np.concatenate([batch.rows for batch in plan])
    assert np.array_equal(np.sort(rows), np.arange(len(lengths)))
    for batch in plan:
        assert batch.padded_rows >= len(batch.rows)
        assert batch.padded_tokens == 0 or batch.padded_tokens >= lengths[batch.rows].max()


def test_committed_lengths() -> None:
    """2758 sentences, 14.15 tokens on average, at most 46; the long list is what its seed draws."""
    short = stored_lengths("stsb")
    assert (len(short), round(short.mean(), 2), short.max()) == (2758, 14.15, 46)
    assert np.array_equal(stored_lengths("long"), long_lengths())


def test_padding_lays_rows_out_in_order(corpus: Corpus) -> None:
    """Ids of each row, then zeros; a filler row holds one token."""
    rows = np.array([7, 3])
    ids, lengths = pad(corpus, policies.Batch(rows, 4, 64))
    assert lengths.tolist() == [*corpus.lengths[rows].tolist(), 1, 1]
    for place, row in enumerate(rows):
        start = int(corpus.lengths[:row].sum())
        length = int(corpus.lengths[row])
        assert ids[place, :length].tolist() == corpus.ids[start : start + length].tolist()
        assert not ids[place, length:].any()


def test_flop_count() -> None:
    """All-MiniLM-L6-v2 on the STS Benchmark: 0.30 GFLOP a sentence."""
    lengths = stored_lengths("stsb")
    flop = Shape(6, 384, 12, 1536).flop(int(lengths.sum()), int((lengths**2).sum()))
    assert flop / len(lengths) == pytest.approx(0.30e9, rel=0.02)


def test_a_nan_never_passes() -> None:
    """Nor does a missing row."""
    right = np.eye(3, dtype=np.float32)
    broken = right.copy()
    broken[1, 1] = np.nan
    assert judge(right, right, "fp32") == (1.0, None)
    assert judge(broken, right, "bf16")[1] is not None
    assert judge(right[:2], right, "bf16")[1] is not None


def test_an_unprepared_folder_is_an_error_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that names the command."""
    assert command.main([str(tmp_path), "--device", "cpu"]) == 2
    assert "bench.gpu_check.prepare" in capsys.readouterr().err


def _rows(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == "row"]
