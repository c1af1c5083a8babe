"""Every architecture through the real export gate with three poolings, against sentence-transformers' own encode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from architectures import ARCHITECTURES, TOKENS, Architecture
from conftest import export_tiny
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import nn

from export.graphs import fused
from export.ort_flavour import operators
from export.passes import DivideScores, SplitMaskUnsqueeze
from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.bundle import Bundle, read_bundle
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import SentportError
from sentport.gate import check, limits_of
from sentport.modeling.checkpoint import load_checkpoint
from sentport.suite import load_suite
from sentport.tokenizer import Tokenizer

POOLINGS = ("mean", "cls", "lasttoken")
# Mixed lengths, one far beyond the limit; special tokens spelt out in a text are special tokens.
TEXTS = [
    "the cat sat on the red park",
    "",
    "a dog ran . " * 300,
    "日本 é !",
    "the <pad> cat <cls> sat </s> on [PAD] the [SEP] dog [CLS] ran",
    "a",
    "the red cat , a red dog . " * 9,
]
# Where ONNX Runtime's optimiser fuses every attention; elsewhere it fuses some, or bias + GELU and skip + norm alone.
ATTENTION_FUSED = {"bert", "minilm", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"}
NO_ORT_FLAVOUR = {"eurobert": "fuses nothing of a eurobert graph"}


@dataclass(frozen=True)
class Exported:
    """One architecture's checkpoint, its bundle, and what was said while it was made."""

    architecture: Architecture
    checkpoint: Path
    bundle: Bundle
    said: list[str]


def save_checkpoint(architecture: Architecture, folder: Path, pooling: str | tuple[str, ...], normalize: bool) -> Path:
    first = Transformer(str(architecture.save(folder / "plain")))
    chain: list[nn.Module] = [first, Pooling(first.auto_model.config.hidden_size, pooling_mode=pooling)]
    SentenceTransformer(modules=[*chain, Normalize()] if normalize else chain, device="cpu").save(str(folder / "st"))
    return folder / "st"


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda architecture: architecture.name)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """One trace for three poolings: side by side in one vector, which each test takes apart again."""
    folder = tmp_path_factory.mktemp(request.param.name)
    checkpoint = save_checkpoint(request.param, folder, POOLINGS, normalize=False)
    said: list[str] = []
    out = export_tiny(checkpoint, folder / "out.bundle", None, layouts=("padded", "packed"), say=said.append)
    return Exported(request.param, checkpoint, read_bundle(out), said)


def part(vectors: np.ndarray, pooling: str) -> np.ndarray:
    """The pooling's share of ``[N, 3 * H]``; sentence-transformers puts cls, mean, lasttoken in this order."""
    return np.split(vectors, len(POOLINGS), axis=1)[("cls", "mean", "lasttoken").index(pooling)]


def test_each_pooling_passes_the_gate_on_its_own(exported: Exported) -> None:
    bundle = exported.bundle
    suite = load_suite(bundle.golden_file())
    assert [case.name for case in suite.cases][:5] == ["1x1", "1x8", "2x7", "3x33", f"5x{TOKENS}"]
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    limits = limits_of("fp32", bundle.spec.architecture)
    assert limits.relative_l2 == (5e-5 if "deberta" in exported.architecture.name else 1e-5)
    for graph in bundle.graphs:
        engine = OnnxRuntimeEngine(bundle, graph, threads=1, device="cpu")
        run = remembered(engine.run)
        cases = suite.cases if graph.layout == "padded" else suite.without_types().cases
        for pooling in POOLINGS:
            own = replace(
                suite,
                text_vectors=part(suite.text_vectors, pooling),
                cases=tuple(replace(case, vectors=part(case.vectors, pooling)) for case in cases),
            )
            check(partial(run_part, run, pooling), own, tokenizer, limits)


def run_part(run: Callable[[TokenBatch], np.ndarray], pooling: str, batch: TokenBatch) -> np.ndarray:
    return part(run(batch), pooling)


def remembered(run: Callable[[TokenBatch], np.ndarray]) -> Callable[[TokenBatch], np.ndarray]:
    """The gate asks for the same batches each time; they are computed once."""
    batches: dict[tuple[bytes, ...], TokenBatch] = {}
    once = cache(lambda key: run(batches[key]))

    def answer(batch: TokenBatch) -> np.ndarray:
        tables = (batch.ids, batch.lengths, batch.attention_mask, batch.token_type_ids)
        key = tuple(b"" if table is None else table.tobytes() for table in tables)
        batches[key] = batch
        return once(key)

    return answer


def test_vectors_are_those_of_sentence_transformers(exported: Exported) -> None:
    assert_equal_vectors(exported, TEXTS)


def test_texts_at_the_edge_of_the_position_table(exported: Exported) -> None:
    """512 tokens, 513, 514 and 2000: cut at 512, never an index beyond the table."""
    bundle = exported.bundle
    assert bundle.spec.max_tokens == TOKENS
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), TOKENS)
    texts = [text_of(tokens, tokenizer) for tokens in (512, 513, 514, 2000)]
    assert tokenizer.encode(texts).full_lengths.tolist() == [512, 513, 514, 2000]
    assert_equal_vectors(exported, texts)


def text_of(tokens: int, tokenizer: Tokenizer) -> str:
    def count(text: str) -> int:
        return int(tokenizer.encode([text]).full_lengths[0])

    one, two = count("a"), count("a a")
    text = " ".join(["a"] * ((tokens - one) // (two - one) + 1))
    return text + "." * (tokens - count(text))


def assert_equal_vectors(exported: Exported, texts: list[str]) -> None:
    wanted = SentenceTransformer(str(exported.checkpoint), device="cpu").encode(texts, batch_size=len(texts))
    with Encoder(exported.bundle.path, threads=1, device="cpu", on_truncate="allow") as encoder:
        found = encoder.encode(texts)
    for pooling in POOLINGS:
        ours, theirs = part(found, pooling).astype(np.float64), part(wanted, pooling).astype(np.float64)
        norms = np.linalg.norm(theirs, axis=1)
        assert (np.linalg.norm(ours - theirs, axis=1) / norms).max() <= 1e-5, pooling
        assert ((ours * theirs).sum(axis=1) / norms / np.linalg.norm(ours, axis=1)).min() >= 0.999999, pooling


def test_no_axis_is_frozen_by_tracing_or_by_a_pass(exported: Exported) -> None:
    """Traced at 2 x 7, run at other shapes after each pass; dim is the only number among the declared axes."""
    types = exported.architecture.name in {"bert", "minilm", "electra", "albert", "deberta-v2", "nomic_bert"}
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    declared = {name: ["batch", "tokens"] for name in names} | {
        "sentence_embedding": ["batch", exported.bundle.spec.dim]
    }
    random = np.random.default_rng(0)
    feeds = [dict.fromkeys(names, random.integers(0, 2, shape)) for shape in ((1, 1), (1, 8), (3, 33), (5, TOKENS))]
    wanted = None
    for stage, model in after_each_pass(exported.bundle):
        proto = ir.to_proto(model)
        assert {
            value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
            for value in (*proto.graph.input, *proto.graph.output)
        } == declared, stage
        assert not {"NonZero", "Compress", "Loop", "If"} & set(operators(model)), stage
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        found = [session.run(None, feed)[0] for feed in feeds]
        wanted = found if wanted is None else wanted
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-5, err_msg=stage)


def after_each_pass(bundle: Bundle) -> Iterator[tuple[str, ir.Model]]:
    model = ir.load(bundle.path / "graphs" / "padded-fp32-portable.onnx")
    yield "portable", model
    for step in (SplitMaskUnsqueeze(), DivideScores()):
        model = step(ir.from_proto(ir.to_proto(model))).model
        yield type(step).__name__, model
    if (file := bundle.path / "graphs" / "padded-fp32-ort.onnx").is_file():
        yield "ort", ir.load(file)


def test_what_was_not_fused_is_told(exported: Exported) -> None:
    name = exported.architecture.name
    flavours = {graph.flavour: graph.operators for graph in exported.bundle.graphs if graph.layout == "padded"}
    notes = [line for line in exported.said if line.startswith("note: ONNX Runtime")]
    layers = exported.architecture.layers
    if name in NO_ORT_FLAVOUR:
        assert list(flavours) == ["portable"]
        assert NO_ORT_FLAVOUR[name] in notes[0]
        assert "flavour ort is left out" in notes[0]
    elif name in ATTENTION_FUSED:
        assert flavours["ort"]["com.microsoft.Attention"] == layers
        assert flavours["ort"]["com.microsoft.SkipLayerNormalization"] == 2 * layers
        assert not notes
    else:
        assert any(operator.startswith("com.microsoft.") for operator in flavours["ort"])
        fused = flavours["ort"].get("com.microsoft.Attention", 0)
        assert fused < layers
        assert f"fuses {fused} of the {layers} attention layers" in notes[0]


@pytest.mark.parametrize(
    "exported", [one for one in ARCHITECTURES if one.name in NO_ORT_FLAVOUR], ids=NO_ORT_FLAVOUR, indirect=True
)
def test_flavour_asked_for_by_name_is_never_left_out(exported: Exported) -> None:
    """Where there is one, `required` makes no difference, and the test above has seen it."""
    portable = ir.load(exported.bundle.path / "graphs" / "padded-fp32-portable.onnx")
    model, reason = load_checkpoint(exported.checkpoint).model, NO_ORT_FLAVOUR[exported.architecture.name]
    with pytest.raises(SentportError, match=f"{reason}.*export with --flavour portable"):
        fused(portable, model, portable.ir_version, required=True, say=lambda _: None)


# XLNet projects its relative positions once a row; every other architecture's dense work leaves its pads out.
UNPACKED = {"xlnet"}
LAYOUTS = ("packed", "padded")


def test_dense_work_is_done_on_tokens_alone(exported: Exported) -> None:
    wanted = "unpacked" if exported.architecture.name in UNPACKED else "rewritten"
    packed = [graph for graph in exported.bundle.graphs if graph.layout == "packed"]
    assert len(packed) == len(exported.bundle.graphs) / 2
    assert {graph.packed for graph in packed} == {wanted}
    assert any("not faster" in line for line in exported.said) == (wanted == "unpacked")


def test_packed_rows_do_not_know_of_pads_or_of_each_other(exported: Exported) -> None:
    """On the graph itself: pads anywhere in a row, garbage under them, 1000 rows, rows of one token and of none."""
    random = np.random.default_rng(1)
    rows = [random.integers(5, 20, size) for size in (7, 1, 0, 30, 1, 2)]
    many = [random.integers(5, 20, size) for size in random.integers(1, 9, 1000)]
    for flavour in {graph.flavour for graph in exported.bundle.graphs}:
        graphs = exported.bundle.path / "graphs"
        options = {"providers": ["CPUExecutionProvider"]}
        packed, padded = (
            ort.InferenceSession(graphs / f"{layout}-fp32-{flavour}.onnx", **options) for layout in LAYOUTS
        )
        alone = np.concatenate([run_padded(padded, row) for row in rows])
        largest = np.linalg.norm(alone, axis=1).max()
        for company in ([], many):
            found = run_packed(packed, [*rows, *company])
            np.testing.assert_allclose(found[: len(rows)], alone, atol=1e-5 * largest)
        for _ in range(3):
            holes = [with_holes(random, row) for row in rows]
            found = run_packed(packed, [ids for ids, _ in holes], [mask for _, mask in holes])
            np.testing.assert_allclose(found, alone, atol=1e-5 * largest)
        assert not found[2].any(), "a row without a token pools to zeros"


def test_portable_graphs_parse_in_tensorrt(exported: Exported) -> None:
    """TensorRT for RTX carries the same parser as TensorRT, and needs no GPU for it."""
    pytest.importorskip("tensorrt_rtx_libs", reason="pip install tensorrt-rtx-cu12-libs tensorrt-rtx-cu12-bindings")
    import tensorrt_rtx_bindings as tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.INTERNAL_ERROR)
    for graph in (graph for graph in exported.bundle.graphs if graph.flavour == "portable"):
        network = tensorrt.Builder(logger).create_network(0)
        parser = tensorrt.OnnxParser(network, logger)
        parsed = parser.parse((exported.bundle.path / graph.file).read_bytes())
        assert parsed, [parser.get_error(place).desc() for place in range(parser.num_errors)]
        found = [network.get_input(place).name for place in range(network.num_inputs)]
        assert found == [tensor.name for tensor in graph.inputs]


def with_holes(random: np.random.Generator, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pads in front of, between and behind the tokens, with random ids, and the mask."""
    mask = random.permutation(np.repeat([1, 0], [len(row), random.integers(1, 6)]))
    ids = random.integers(0, 20, len(mask))
    ids[mask == 1] = row
    return ids, mask


def run_packed(
    session: ort.InferenceSession, rows: list[np.ndarray], masks: list[np.ndarray] | None = None
) -> np.ndarray:
    ids = np.concatenate(rows)
    mask = np.ones_like(ids) if masks is None else np.concatenate(masks)
    feed = {"input_ids": ids, "attention_mask": mask, "lengths": np.array([len(row) for row in rows], np.int32)}
    return session.run(None, feed)[0]


def run_padded(session: ort.InferenceSession, row: np.ndarray) -> np.ndarray:
    """One row alone; a row without a token is one pad."""
    ids, mask = (row[None], np.ones_like(row)[None]) if len(row) else (np.zeros((1, 1), np.int64),) * 2
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return session.run(None, {name: feed[name] for name in {value.name for value in session.get_inputs()}})[0]


@pytest.mark.full
def test_full_product(tmp_path: Path) -> None:
    """Each architecture with each pooling as a checkpoint of its own, both flavours where there are two."""
    passed = []
    for architecture in ARCHITECTURES:
        for pooling in (*POOLINGS, "max", "weightedmean", "mean_sqrt_len_tokens"):
            checkpoint = save_checkpoint(architecture, tmp_path / architecture.name / pooling, pooling, normalize=True)
            out = checkpoint.with_name("out.bundle")
            bundle = read_bundle(export_tiny(checkpoint, out, None, layouts=("padded", "packed")))
            wanted = SentenceTransformer(str(checkpoint), device="cpu").encode(TEXTS)
            with Encoder(bundle.path, threads=1, device="cpu", on_truncate="allow") as encoder:
                np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-5)
            passed += [(architecture.name, pooling, graph.layout, graph.flavour) for graph in bundle.graphs]
    print(f"\n{len(passed)} combinations of architecture, pooling, layout and flavour passed the gate")
    assert len(passed) >= len(ARCHITECTURES) * 6 * 2


@pytest.mark.full
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_every_precision_passes_its_gate(architecture: Architecture, tmp_path: Path) -> None:
    """In both layouts and every flavour there is; the export refuses what does not pass."""
    checkpoint = save_checkpoint(architecture, tmp_path, "mean", normalize=True)
    precisions = ("fp16", "bf16", "int8")
    out = export_tiny(checkpoint, tmp_path / "low.bundle", None, layouts=("padded", "packed"), precisions=precisions)
    graphs = read_bundle(out).graphs
    assert len(graphs) == (6 if architecture.name in NO_ORT_FLAVOUR else 12)
    for graph in graphs:
        if graph.int8 is not None:
            assert len(graph.int8["layers"]) >= 2
            assert len(graph.int8["layers"]) + len(graph.int8["kept"]) >= 4
