"""Files for engine ``native``: each architecture through the gate in each precision; what it does not have is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, Architecture
from conftest import data_folder

native = pytest.importorskip("sentport_native", reason="needs a C++ compiler: make native")

from export.calibration import calibration_texts  # noqa: E402
from export.native import NotCoveredError, export_native, native_int8, native_model  # noqa: E402
from export.sensitivity import Calibration  # noqa: E402
from export.verify import check_graph, verify_bundle  # noqa: E402
from sentport.batch import TokenBatch  # noqa: E402
from sentport.bundle import Bundle, read_bundle, sha256_of  # noqa: E402
from sentport.engines.native import NativeEngine, make_model, run_model, runs  # noqa: E402
from sentport.engines.native_file import read_native  # noqa: E402
from sentport.engines.torch import TorchEngine  # noqa: E402
from sentport.errors import GateError  # noqa: E402
from sentport.evaluation.metrics import spearman  # noqa: E402
from sentport.evaluation.sts import read_sts  # noqa: E402
from sentport.gate import check, limits_of  # noqa: E402
from sentport.modeling.chain import Dense, LayerMean, LayerNorm, Normalize  # noqa: E402
from sentport.modeling.checkpoint import load_checkpoint  # noqa: E402
from sentport.modeling.pooling import Pooling, PoolingMode  # noqa: E402
from sentport.modeling.sentence_model import SentenceModel  # noqa: E402
from sentport.suite import Suite, build_suite  # noqa: E402
from sentport.tokenizer import Tokenizer  # noqa: E402

COVERED = {"bert", "minilm", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra"}
MODES = (PoolingMode.MEAN, PoolingMode.CLS, PoolingMode.MAX)
TEXTS = ("the cat sat on the red park", "", "a", "日本 é !", "a dog ran . " * 90, "the red cat , a red dog . " * 9)


def by_name(name: str) -> Architecture:
    return next(architecture for architecture in ARCHITECTURES if architecture.name == name)


def export(folder: Path, model: SentenceModel, suite: Suite, tokenizer: Tokenizer, bundle: Bundle) -> Bundle:
    calibration = Calibration(suite.rows(tokenizer), suite, tokenizer, limits_of("int8", "bert"), "these")
    precisions = ("fp32", "bf16", "int8")
    said: list[str] = []
    records = export_native(bundle, model, precisions, calibration, suite, tokenizer, None, said.append)
    return replace(bundle, native=tuple(records))


def cosines(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of rows, both ``[rows, dim]``."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.fixture(scope="module", params=sorted(COVERED))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Suite, Tokenizer]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = load_checkpoint(by_name(request.param).save(folder / "plain"), pooling="mean")
    encoder = checkpoint.model.transformer
    torch.manual_seed(1)
    width = encoder.hidden_size * len(MODES)
    chain = [Pooling(encoder.hidden_size, MODES), Dense(width, 40, True, torch.nn.Tanh()), LayerNorm(40), Normalize()]
    model = SentenceModel(encoder, chain).eval()
    tokenizer = Tokenizer(checkpoint.tokenizer_definition, 160)  # more than one tile of keys
    types = encoder.token_types if encoder.uses_token_types else 1
    source = TorchEngine(model, threads=1, device="cpu")
    suite = build_suite(source, tokenizer, TEXTS, vocabulary=encoder.vocabulary, token_types=types)
    bundle = Bundle(folder, replace(checkpoint.spec, dim=40), (), "", {})
    return export(folder, model, suite, tokenizer, bundle), suite, tokenizer


def test_every_architecture_passes_the_gate(made: tuple[Bundle, Suite, Tokenizer]) -> None:
    bundle, suite, tokenizer = made
    parities = {record.precision: record.parity for record in bundle.native}
    assert parities["fp32"]["relative_l2"] < 1e-5
    assert parities["bf16"]["cosine"] > 0.999
    assert all(parity["company"] == 0 for parity in parities.values())  # the same bits
    mode = (bundle.path / "native").stat().st_mode & 0o444
    assert {bundle.graph_file(record).stat().st_mode & 0o444 for record in bundle.native} == {mode}  # readable as it is


@pytest.mark.parametrize("made", ["mpnet"], indirect=True)
@pytest.mark.parametrize("level", ["plain", *native.levels()])
def test_every_level_stays_within_the_gate(made: tuple[Bundle, Suite, Tokenizer], level: str) -> None:
    bundle, suite, tokenizer = made
    if level == "plain":  # which is slow
        suite = replace(suite, cases=suite.cases[:4], texts=suite.texts[:4], text_vectors=suite.text_vectors[:4])
    for record in bundle.native:
        engine = NativeEngine(bundle, record, 1, level=level, twin=True)
        check(engine.run, suite, tokenizer, replace(limits_of(record.precision, "bert"), rank=-1))


@pytest.mark.parametrize("made", ["bert"], indirect=True)
def test_int8_names_its_layers_and_their_numbers_are_proved(made: tuple[Bundle, Suite, Tokenizer]) -> None:
    bundle, suite, tokenizer = made
    record = next(record for record in bundle.native if record.precision == "int8")
    assert record.int8 is not None
    layers = {f"layers.{n}.{part}" for n in range(2) for part in ("down", "output", "qkv", "up")}
    assert {*record.int8["layers"], *record.int8["kept"]} == layers
    assert record.int8["form"] == "per token"
    other = replace(record, int8={**record.int8, "sha256": "0" * 64})
    with pytest.raises(GateError, match="are not those that export made"):
        check_graph(bundle, other, suite, tokenizer, "native")
    exact = next(record for record in bundle.native if record.precision == "fp32")
    with pytest.raises(GateError, match="not all of its linear layers are stored in bf16"):
        check_graph(bundle, replace(exact, precision="bf16"), suite, tokenizer, "native")


@pytest.mark.parametrize("made", ["bert"], indirect=True)
def test_int8_weights_that_16_bits_cannot_add_are_refused(made: tuple[Bundle, Suite, Tokenizer]) -> None:
    record = next(record for record in made[0].native if record.precision == "int8")
    assert record.int8 is not None
    name = f"{record.int8['layers'][0]}.weight"
    content = read_native(made[0].graph_file(record))
    for change, fits in (([32, 32, 63, 65, 32, 32], True), ([32, 32, 0, 0, 32, 33], False), ([0, 0, -65, -64], False)):
        weight = np.array(content.arrays[name])
        weight[3] = 0
        weight[3, 8 : 8 + len(change)] = change
        changed = content._replace(arrays={**content.arrays, name: weight})
        if fits:
            make_model(changed, native.levels()[-1])
            continue
        with pytest.raises(ValueError, match=r"layers\..*: int8 weights of output 3 do not fit 16-bit sums"):
            make_model(changed, native.levels()[-1])


@pytest.mark.parametrize("made", ["bert"], indirect=True)
@pytest.mark.parametrize(
    ("found", "other", "said"),
    [(b"layers.0.up.weight", b"layers.0.xx.weight", "does not fit engine native"), (b'"F32"', b'"F99"', "is damaged")],
)
def test_a_file_that_the_engine_does_not_take_is_refused_by_itself(
    made: tuple[Bundle, Suite, Tokenizer], found: bytes, other: bytes, said: str, tmp_path: Path
) -> None:
    bundle, suite, tokenizer = made
    record = bundle.native[0]
    changed = tmp_path / record.file
    changed.parent.mkdir()
    changed.write_bytes(bundle.graph_file(record).read_bytes().replace(found, other))
    with pytest.raises(GateError, match=f"{record.file} is refused: .* {said}"):
        check_graph(
            replace(bundle, path=tmp_path), replace(record, sha256=sha256_of(changed)), suite, tokenizer, "native"
        )


@pytest.mark.parametrize(
    ("name", "chain", "said"),
    [
        ("albert", [Pooling(32, MODES)], "architecture albert"),
        ("modernbert", [Pooling(32, MODES)], "architecture modernbert"),
        ("bert", [Pooling(32, (PoolingMode.LAST_TOKEN,))], "pooling lasttoken"),
        ("bert", [LayerMean((0, -1)), Pooling(32, MODES)], "module LayerMean on token vectors"),
        ("bert", [Pooling(32, MODES[:1]), Dense(32, 32, True, torch.nn.GELU("tanh"))], "Dense with GELU"),
        ("bert", [Pooling(32, MODES[:1]), Dense(32, 8, True, torch.nn.Tanh(), residual=True)], "Dense with a residual"),
    ],
)
def test_what_it_does_not_have_is_said(tmp_path: Path, name: str, chain: list[Any], said: str) -> None:
    checkpoint = load_checkpoint(by_name(name).save(tmp_path / "plain"), pooling="mean")
    model = SentenceModel(checkpoint.model.transformer, chain)
    with pytest.raises(NotCoveredError, match=said):
        native_model(model)
    told: list[str] = []
    assert not list(
        export_native(Bundle(tmp_path, checkpoint.spec, (), "", {}), model, ("fp32",), None, *told_to(told))
    )
    assert told == [f"note: engine native does not have {said}; the graphs are what runs"]


def told_to(told: list[str]) -> tuple[Any, Any, None, Any]:
    """No suite and no tokenizer: nothing is made that they could judge."""
    return None, None, None, told.append


def test_other_activations_pass_the_gate(tmp_path: Path) -> None:
    for activation in ("gelu_new", "relu"):
        bert = by_name("bert")
        sizes = replace(bert, sizes={"hidden_act": activation, "hidden_size": 40, "num_attention_heads": 5})
        checkpoint = load_checkpoint(sizes.save(tmp_path / activation), pooling="mean")
        tokenizer = Tokenizer(checkpoint.tokenizer_definition, 40)
        source = TorchEngine(checkpoint.model, threads=1, device="cpu")
        suite = build_suite(source, tokenizer, TEXTS, vocabulary=30, token_types=2)
        folder = tmp_path / f"{activation}.bundle"
        folder.mkdir()
        bundle = Bundle(folder, checkpoint.spec, (), "", {})
        made = export_native(bundle, checkpoint.model, ("fp32",), None, suite, tokenizer, None, lambda _: None)
        assert [record.parity["passed"] for record in made] == [True]


def test_a_bundle_is_verified_again_with_its_types_and_prompts(tiny_bundle: Path) -> None:
    bundle = read_bundle(tiny_bundle)
    assert [record.file for record in bundle.native] == ["native/fp32.safetensors"]
    assert "token_type_ids" in [tensor.name for tensor in bundle.native[0].inputs]
    verdicts = verify_bundle(bundle, engine="native")
    assert [verdict.parity is not None and verdict.parity.company for verdict in verdicts] == [0.0]


@pytest.mark.full
def test_lower_precisions_stay_close_on_real_sentences_and_long_texts(minilm_checkpoint: Path, tmp_path: Path) -> None:
    """STS-B test, and texts of 256 and of 512 tokens, all positions that the model has, made of its sentences."""
    pairs = read_sts(data_folder() / "sts_raw" / "STSBenchmark" / "test.tsv")
    texts = list(dict.fromkeys([*pairs.sentences1, *pairs.sentences2]))
    checkpoint = load_checkpoint(minilm_checkpoint)
    tokenizer = Tokenizer(checkpoint.tokenizer_definition, 512)
    made = native_model(checkpoint.model)
    int8 = native_int8(checkpoint.model, made, tokenizer.encode(calibration_texts()[0]).rows)
    rows = tokenizer.encode(texts).rows
    words = np.concatenate([row[1:-1] for row in rows])
    for length in (256, 512):
        bodies = words[: 8 * (length - 2)].reshape(8, length - 2)
        rows += [np.concatenate([rows[0][:1], body, rows[0][-1:]]) for body in bodies]
    batch, place = TokenBatch.from_rows(rows), {text: n for n, text in enumerate(texts)}
    first, second = [place[text] for text in pairs.sentences1], [place[text] for text in pairs.sentences2]
    vectors, rank = {}, {}
    for precision in ("fp32", "bf16", "int8"):
        made.write(tmp_path / precision, precision, int8 if precision == "int8" else None)
        level = native.levels()[-1 if runs(precision) else 0]  # of bf16 the twin, where there is nothing better
        found = vectors[precision] = run_model(make_model(read_native(tmp_path / precision), level), batch, 2)
        rank[precision] = 100 * spearman(cosines(found[first], found[second]), pairs.scores)
    for precision, least in (("bf16", 0.9999), ("int8", 0.99)):
        assert least <= cosines(vectors[precision], vectors["fp32"]).min() < 0.999999
        assert abs(rank[precision] - rank["fp32"]) <= 0.3
