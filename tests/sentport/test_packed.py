"""Layout packed downstream of the bundle: engine, encoder, batches, commands, server model, bench."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from bench.contestants.opening import open_contestant
from bench.corpus import Corpus
from bench.grid import RunOptions, specs
from sentport.batch import TokenBatch
from sentport.bulk.inputs import find_inputs
from sentport.bulk.job import Options, encode_files
from sentport.bulk.output import find_output
from sentport.bundle import DESCRIPTION_FILE, read_bundle
from sentport.encoder import Encoder
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import BundleError, EngineError, GateError, InputError, SentportError
from sentport.gate import check
from sentport.suite import load_suite
from sentport.tokenizer import Tokenizer
from triton_repo.repository import write_repository
from triton_repo.wanted import Wanted

TEXTS = ["the cat sat on the mat .", "", "a", "日本", "a dog ran in the park " * 12, "the cat " * 40, "é !", "a"]
ROWS = [[2, 7, 9, 11, 3], [2, 3], [], [2, *range(5, 24), 3], [2, 8, 3]]


@pytest.fixture(scope="module")
def engines(both_layouts: Path) -> Iterator[tuple[OnnxRuntimeEngine, OnnxRuntimeEngine]]:
    """Padded and packed."""
    bundle = read_bundle(both_layouts)
    padded, packed = (
        OnnxRuntimeEngine(bundle, bundle.select(layout, "auto"), threads=1, device="cpu")
        for layout in ("padded", "packed")
    )
    yield padded, packed
    padded.close()
    packed.close()


def edited(bundle: Path, folder: Path, **changes: object) -> Path:
    """A copy of the bundle whose packed graphs have other records."""
    copy = Path(shutil.copytree(bundle, folder / "edited.bundle"))
    path = copy / DESCRIPTION_FILE
    values = json.loads(path.read_text())
    for graph in values["graphs"]:
        graph |= changes if graph["layout"] == "packed" else {}
    path.write_text(json.dumps(values))
    return copy


@pytest.mark.parametrize(
    "rows",
    [ROWS, ROWS[:1], [[2, 3]] * 40, [[5]], [[], [], []], [[], [4, 5]]],
    ids=["mixed", "one row", "equal lengths", "one token", "no token at all", "an empty row first"],
)
def test_a_packed_engine_gives_what_the_padded_one_gives(
    engines: tuple[OnnxRuntimeEngine, OnnxRuntimeEngine], rows: list[list[int]]
) -> None:
    padded, packed = engines
    assert (padded.layout, packed.layout) == ("padded", "packed")
    found = packed.run(TokenBatch.from_rows(rows))
    assert found.shape == (len(rows), 24)
    np.testing.assert_allclose(found, padded.run(TokenBatch.from_rows(rows)), atol=2e-6)


def test_no_rows_give_no_vectors(engines: tuple[OnnxRuntimeEngine, OnnxRuntimeEngine]) -> None:
    for engine in engines:
        assert engine.run(TokenBatch.from_rows([])).shape == (0, 24)


def test_pads_at_the_end_of_rows_take_no_part(engines: tuple[OnnxRuntimeEngine, OnnxRuntimeEngine]) -> None:
    garbage = [[2, 7, 9, 3, 17, 4], [2, 3, 12], [11, 11]]
    mask = np.array([1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0])
    batch = replace(TokenBatch.from_rows(garbage), attention_mask=mask)
    clean = TokenBatch.from_rows([[2, 7, 9, 3], [2, 3], []])
    for engine in engines:
        np.testing.assert_allclose(engine.run(batch), engine.run(clean), atol=2e-6)


def test_what_packed_does_not_take_is_refused_by_name(engines: tuple[OnnxRuntimeEngine, OnnxRuntimeEngine]) -> None:
    _, packed = engines
    batch = TokenBatch.from_rows(ROWS)
    zeros = np.zeros(len(batch.ids), np.int64)
    assert packed.run(replace(batch, token_type_ids=zeros)).shape == (len(ROWS), 24)
    with pytest.raises(EngineError, match=r"token types other than 0 .* layout packed takes none; use layout padded"):
        packed.run(replace(batch, token_type_ids=zeros + 1))
    with pytest.raises(EngineError, match="pooling mask"):
        packed.run(replace(batch, pooling_mask=zeros + 1))
    with pytest.raises(InputError, match="pad before a token"):
        packed.run(replace(batch, attention_mask=np.arange(len(batch.ids)) % 2))


@pytest.mark.parametrize("threads", [1, 2])
def test_encoders_of_both_layouts_agree(both_layouts: Path, threads: int) -> None:
    texts = [*TEXTS, *(f"the cat {'sat on ' * (row % 9)}the mat" for row in range(100))]
    options = {"threads": threads, "on_truncate": "allow"}
    with Encoder(both_layouts, layout="packed", **options) as packed, Encoder(both_layouts, **options) as chosen:
        assert packed.info.layout == "packed"
        assert chosen.info.layout == read_bundle(both_layouts).select("auto", "auto").layout
        vectors = packed.encode(texts, prompt="query")
        with Encoder(both_layouts, layout="padded", **options) as padded:
            assert padded.info == replace(packed.info, layout="padded")
            np.testing.assert_allclose(vectors, padded.encode(texts, prompt="query"), atol=2e-6)


def test_the_encoder_keeps_the_token_budget_by_what_is_computed(
    both_layouts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int, int]] = []
    run = OnnxRuntimeEngine.run

    def noted(self: OnnxRuntimeEngine, batch: TokenBatch, *, beside: bool = False) -> np.ndarray:
        shapes.append((len(batch.lengths), int(batch.lengths.max()), len(batch.ids)))
        return run(self, batch, beside=beside)

    monkeypatch.setattr(OnnxRuntimeEngine, "run", noted)
    texts = [f"the cat {'sat ' * (row % 40)}{row}" for row in range(200)]
    with Encoder(both_layouts, layout="packed", threads=1) as encoder:
        budget = encoder._engine.token_budget
        encoder.encode(texts)
    assert sum(rows for rows, _, _ in shapes) == len(texts)
    assert max(tokens for _, _, tokens in shapes) <= budget
    assert budget < max(rows * longest for rows, longest, _ in shapes) <= 1.25 * budget


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"packed": None}, "packed is None for a graph of layout packed"),
        ({"packed": "folded"}, "packed is 'folded'"),
        ({"layout": "padded"}, "packed is 'rewritten' for a graph of layout padded"),
        ({"layout": "ragged"}, "layout 'ragged' is unknown"),
    ],
)
def test_a_record_says_how_its_graph_is_packed(
    both_layouts: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(BundleError, match=said):
        read_bundle(edited(both_layouts, tmp_path, **changes))


def test_auto_takes_packed_where_it_was_measured_to_be_faster(both_layouts: Path) -> None:
    bundle = read_bundle(both_layouts)
    assert bundle.select("auto", "auto", "cpu").layout == "packed"
    assert bundle.select("auto", "auto", "cuda").layout == "padded"
    assert bundle.select("packed", "auto", "cuda").layout == "packed"


def test_auto_never_prefers_a_graph_that_unpacks(both_layouts: Path, tmp_path: Path) -> None:
    bundle = read_bundle(edited(both_layouts, tmp_path, packed="unpacked"))
    assert bundle.layouts == ("padded", "packed")
    assert bundle.select("auto", "auto").layout == "padded"
    assert bundle.select("packed", "auto").packed == "unpacked"
    alone = replace(bundle, graphs=tuple(graph for graph in bundle.graphs if graph.packed))
    assert alone.select("auto", "auto").packed == "unpacked", "the only graph there is"
    with pytest.raises(BundleError, match=r"no graph of layout padded; `sentport export .*--layout padded,packed`"):
        alone.select("padded", "auto")


def test_a_run_is_not_mixed_with_one_of_another_layout(
    both_layouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "v"
    texts.write_text("\n".join(f"the cat {row}" for row in range(6)))

    def encode(encoder: Encoder) -> None:
        inputs = find_inputs([str(texts)])
        encode_files(encoder, inputs, find_output(str(out)), Options(part_rows=2))

    run, calls = OnnxRuntimeEngine.run, iter(range(9))

    def fails_late(self: OnnxRuntimeEngine, batch: TokenBatch, *, beside: bool = False) -> np.ndarray:
        if next(calls) > 1:
            raise EngineError("no more")
        return run(self, batch, beside=beside)

    with Encoder(both_layouts, layout="padded", threads=1) as padded:
        with monkeypatch.context() as patch, pytest.raises(EngineError, match="no more"):
            patch.setattr(OnnxRuntimeEngine, "run", fails_late)
            encode(padded)
        with (
            Encoder(both_layouts, layout="packed", threads=1) as packed,
            pytest.raises(SentportError, match="unfinished run with --layout padded, this one has packed; add --force"),
        ):
            encode(packed)
        encode(padded)


def test_commands_take_a_layout(
    both_layouts: Path, tiny_bundle: Path, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    source, texts, out = str(both_layouts), tmp_path / "texts.txt", tmp_path / "v.npy"
    texts.write_text("the cat\na dog sat\nthe mat\n", encoding="utf-8")
    run = ("--input", str(texts), "--threads", "1")
    assert cli("encode", source, *run, "--layout", "packed", "--output", str(out))[0] == 0
    with Encoder(both_layouts, layout="padded", threads=1) as encoder:
        np.testing.assert_allclose(np.load(out), encoder.encode(["the cat", "a dog sat", "the mat"]), atol=2e-6)
    code, told, _ = cli("diff", source, source, "--layout", "padded", "packed", "--corpus", str(texts), "--json")
    report = json.loads(told)
    assert (code, report["a"]["graph"], report["b"]["graph"]) == (0, "padded-fp32-portable", "packed-fp32-portable")
    pairs = [cli("pairs", source, *run, "--layout", layout) for layout in ("padded", "packed")]
    assert [code for code, _, _ in pairs] == [0, 0]
    assert [line.split("\t")[1:] for line in pairs[0][1].splitlines()] == [
        line.split("\t")[1:] for line in pairs[1][1].splitlines()
    ]
    assert ", packed: rewritten, opset" in cli("inspect", source)[1]
    code, _, said = cli("encode", str(tiny_bundle), *run, "--layout", "packed", "--output", str(out), "--force")
    assert code == 2
    assert said.count("\n") == 1
    assert "`sentport export SOURCE --out BUNDLE --layout padded,packed` makes one" in said


def test_a_server_model_is_written_for_a_layout(both_layouts: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    for layout in ("padded", "packed"):
        config = write_repository(Wanted(both_layouts, layout=layout), tmp_path / layout) / "tiny" / "config.pbtxt"
        assert f'key: "layout" value: {{ string_value: "{layout}" }}' in config.read_text()
    with pytest.raises(BundleError, match="no graph of layout packed"):
        write_repository(Wanted(tiny_bundle, layout="packed"), tmp_path / "none")


def test_the_bench_sets_both_layouts_side_by_side(both_layouts: Path) -> None:
    corpus = Corpus("c", "s", tuple(TEXTS))
    for layouts, names in (
        (None, ["sentport onnxruntime", "sentport onnxruntime packed"]),
        (("packed",), ["sentport onnxruntime packed"]),
    ):
        options = RunOptions(
            Path("none"), both_layouts, (corpus,), layouts=layouts, contestants=("onnxruntime",), threads=1
        )
        opened = [open_contestant(spec) for spec in specs(options)]
        assert [contestant.name for contestant in opened] == names
        assert [contestant.conditions().layout for contestant in opened][-1] == "packed"
        for contestant in opened:
            contestant.close()


def attended_spare_pad(model: onnx.ModelProto) -> None:
    """What fills the rectangle's free slots counts as a token."""
    pad = next(node for node in model.graph.node if node.op_type == "ConstantOfShape")
    pad.attribute[0].t.CopyFrom(numpy_helper.from_array(np.ones(1, np.int64)))


def tokens_of_other_rows(model: onnx.ModelProto) -> None:
    """Free slots are taken for tokens, and tokens for free slots."""
    next(node for node in model.graph.node if node.op_type == "Less").op_type = "GreaterOrEqual"


def pads_before_tokens(model: onnx.ModelProto) -> None:
    """A row's pads and its tokens change places."""
    where = [node for node in model.graph.node if node.op_type == "Where"][-1]
    where.input[1], where.input[2] = where.input[2], where.input[1]


def slots_of_another_token(model: onnx.ModelProto) -> None:
    """Slots take the token before theirs."""
    scatter = [node for node in model.graph.node if node.op_type == "ScatterElements"][-1]
    one = next(tensor.name for tensor in model.graph.initializer if numpy_helper.to_array(tensor).tolist() == [1])
    shifted = onnx.helper.make_node("Sub", [scatter.input[2], one], ["shifted"])
    model.graph.node.insert(list(model.graph.node).index(scatter), shifted)
    scatter.input[2] = "shifted"


@pytest.mark.parametrize(
    "damage", [attended_spare_pad, tokens_of_other_rows, pads_before_tokens, slots_of_another_token]
)
def test_the_gate_refuses_a_damaged_packed_graph(both_layouts: Path, damage: Callable[[onnx.ModelProto], None]) -> None:
    bundle = read_bundle(both_layouts)
    model = onnx.load(bundle.graph_file(bundle.select("packed", "fp32")))
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    suite = load_suite(bundle.golden_file()).without_types()
    check(runner(model), suite, tokenizer)
    damage(model)
    with pytest.raises(GateError):
        check(runner(model), suite, tokenizer)


def test_verify_refuses_a_graph_that_cannot_run(
    both_layouts: Path, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    model = onnx.load(both_layouts / "graphs" / "packed-fp32-portable.onnx")
    spare = next(node for node in model.graph.node if node.op_type == "Min")
    spare.op_type, spare.input[1] = "Sub", spare.input[0]  # never a spare pad
    data = model.SerializeToString()
    damaged = edited(both_layouts, tmp_path, sha256=hashlib.sha256(data).hexdigest())
    (damaged / "graphs" / "packed-fp32-portable.onnx").write_bytes(data)
    code, told, said = cli("verify", str(damaged))
    assert code == 1
    assert "fails at its first run" in told + said
    assert "bug" not in said


def runner(model: onnx.ModelProto) -> Callable[[TokenBatch], np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(batch: TokenBatch) -> np.ndarray:
        ids, mask, lengths, _ = batch.packed()
        return session.run(None, {"input_ids": ids, "attention_mask": mask, "lengths": lengths})[0]

    return run
