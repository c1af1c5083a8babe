"""Every pooling and chain through the real export gate; the exported graph gives sentence-transformers' own vectors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from conftest import build_transformer, export_tiny
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Dropout, LayerNorm, Normalize, Pooling, Transformer
from torch import nn

from export.verify import verify_bundle
from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.bundle import LAYOUTS, Bundle, read_bundle
from sentport.cli import main
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import CheckpointError, GateError
from sentport.gate import check
from sentport.modeling.checkpoint import load_checkpoint
from sentport.suite import load_suite
from sentport.tokenizer import Tokenizer

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PROMPTS = {"query": "the cat ", "passage": "a blue dog ran on the mat , "}
TEXTS = ["sat on the mat .", "", "a dog", "日本 é", "the red mat in the park . " * 12, "the cat sat", "!"]


def _random(module: nn.Module) -> nn.Module:
    """Weights away from their starting values, which hide what is left out (ones, zeros)."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


@dataclass(frozen=True)
class Chain:
    """Modules after the transformer, and what bundle.json must say of them.

    Attributes:
        modules: Makes them, by sentence-transformers.
        types: Their types in bundle.json.
        default: The prompt that is saved as default.
        masked: Whether prompts stay out of pooling.
        dim: The width that is asked for.
        blocks: Of how many poolings a vector consists; one's error must not hide among the others' values.
    """

    modules: Callable[[], list[nn.Module]]
    types: tuple[str, ...]
    default: str | None = None
    masked: bool = False
    dim: int | None = None
    blocks: int = 1


CHAINS = {
    "every-pooling": Chain(lambda: [Pooling(32, POOLINGS)], ("Pooling",), default="query", blocks=6),
    "every-pooling-without-prompt": Chain(
        lambda: [Pooling(32, POOLINGS, include_prompt=False)], ("Pooling",), default="passage", masked=True, blocks=6
    ),
    # Recipe 3; the Dense of equal width is the trap, since no shape tells that it is gone.
    "cls-dense-norm-dense-cut": Chain(
        lambda: [
            Pooling(32, "cls"),
            Dense(32, 24, activation_function=nn.Tanh()),
            _random(LayerNorm(24)),
            Dense(24, 24, bias=False, activation_function=nn.Identity()),
            Normalize(),
            Dropout(0.3),
        ],
        ("Pooling", "Dense", "LayerNorm", "Dense", "Truncate", "Normalize"),
        dim=8,
    ),
    "dense-on-tokens-and-normalize-in-the-middle": Chain(
        lambda: [
            Dense(32, 20, activation_function=nn.GELU(), module_input_name="token_embeddings", use_residual=True),
            Normalize(module_input_name="token_embeddings"),
            Pooling(20, ("lasttoken", "weightedmean"), include_prompt=False),
            Normalize(),
            Dense(40, 40, activation_function=nn.ReLU(), use_residual=True),
            Dense(40, 16, activation_function=nn.SiLU()),
        ],
        ("Dense", "Normalize", "Pooling", "Normalize", "Dense", "Dense"),
        default="query",
        masked=True,
    ),
}


@dataclass(frozen=True)
class Exported:
    chain: Chain
    checkpoint: Path
    bundle: Bundle


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """A chain by name, saved by sentence-transformers and exported once."""
    plain = build_transformer(tmp_path_factory.mktemp("plain") / "plain")
    made: dict[str, Exported] = {}

    def make(name: str) -> Exported:
        if name not in made:
            folder, chain = tmp_path_factory.mktemp(name), CHAINS[name]
            torch.manual_seed(2)
            modules = [Transformer(str(plain), max_seq_length=48), *chain.modules()]
            model = SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name=chain.default)
            model.save(str(folder / "model"))
            bundle = export_tiny(folder / "model", folder / "model.bundle", dim=chain.dim, layouts=LAYOUTS)
            made[name] = Exported(chain, folder / "model", read_bundle(bundle))
        return made[name]

    return make


def relative_l2(found: np.ndarray, wanted: np.ndarray) -> float:
    error = np.linalg.norm(found.astype(np.float64) - wanted, axis=-1)
    return float((error / np.linalg.norm(wanted.astype(np.float64), axis=-1)).max())


@pytest.mark.parametrize("name", CHAINS)
def test_exported_chain_equals_sentence_transformers(exported: Callable[[str], Exported], name: str) -> None:
    one = exported(name)
    spec, chain = one.bundle.spec, one.chain
    assert tuple(module["type"] for module in spec.modules) == ("Transformer", *chain.types)
    assert spec.normalized == (chain.types[-1] == "Normalize")
    extra = ["pooling_mask"] if chain.masked else []
    assert one.bundle.layouts == LAYOUTS
    for graph in one.bundle.graphs:
        third = "token_type_ids" if graph.layout == "padded" else "lengths"
        assert [tensor.name for tensor in graph.inputs] == ["input_ids", "attention_mask", third, *extra]
        assert not {"ArgMax", "NonZero", "Compress", "TopK", "Unique"} & graph.operators.keys()
    wanted = of_source(one)
    for layout in LAYOUTS:
        with Encoder(one.bundle.path, layout=layout, threads=1, on_truncate="allow") as encoder:
            assert encoder.info.dim == wanted[None].shape[1]
            for prompt, vectors in wanted.items():
                found = encoder.encode(TEXTS, prompt=prompt)
                blocks = (array.reshape(len(TEXTS) * chain.blocks, -1) for array in (found, vectors))
                assert relative_l2(*blocks) <= 1e-5, (layout, prompt)
    assert relative_l2(wanted["query"], wanted["passage"]) > 1e-3, "prompts that change nothing prove nothing"


def of_source(one: Exported) -> dict[str | None, np.ndarray]:
    """sentence-transformers' own vectors under each prompt, None = the default one."""
    source = SentenceTransformer(str(one.checkpoint), device="cpu", truncate_dim=one.chain.dim)
    found = {prompt: source.encode(TEXTS, prompt=text) for prompt, text in {None: None, "": "", **PROMPTS}.items()}
    if one.chain.dim is None:
        return found
    return {prompt: vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for prompt, vectors in found.items()}


@pytest.mark.parametrize("name", ["every-pooling", "every-pooling-without-prompt"])
def test_padding_does_not_leak_and_rows_without_tokens_pool_to_zeros(
    exported: Callable[[str], Exported], name: str
) -> None:
    """Recipes 1 and 6: a text alone, beside long and many others, with garbage under the mask; no token at all."""
    bundle = exported(name).bundle
    engine = OnnxRuntimeEngine(bundle, bundle.graphs[0], threads=1, device="cpu")
    random = np.random.default_rng(0)
    text = np.array([2, 5, 6, 8, 11, 3])
    alone = engine.run(TokenBatch.from_rows([text]))[0]
    longest = bundle.spec.max_tokens
    for real in ([6, longest], [6, *random.integers(1, longest + 1, size=29)], [6, 9, 0]):
        ids = random.integers(0, 25, size=(len(real), longest))
        ids[0, :6] = text
        mask = (np.arange(longest) < np.array(real)[:, None]).astype(np.int64)
        lengths = np.full(len(real), longest, np.int32)
        found = engine.run(TokenBatch(ids.reshape(-1), lengths, mask.reshape(-1)))
        assert np.abs(found[0] - alone).max() <= 1e-5
        assert found[0] @ alone / np.linalg.norm(found[0]) / np.linalg.norm(alone) >= 1 - 1e-6
        assert np.isfinite(found).all()
    assert (found[2] == 0).all()
    engine.close()


def test_graph_that_pools_the_prompt_is_refused(exported: Callable[[str], Exported]) -> None:
    bundle = exported("every-pooling-without-prompt").bundle
    model = onnx.load(bundle.graph_file(bundle.graphs[0]))
    readers = [node for node in model.graph.node if "pooling_mask" in node.input]
    assert readers
    for node in readers:
        node.input[list(node.input).index("pooling_mask")] = "attention_mask"
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = ("input_ids", "attention_mask", "token_type_ids", "pooling_mask")
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    suite = load_suite(bundle.golden_file())
    assert suite.unpooled == tokenizer.prompt_tokens(PROMPTS["passage"]) == 9
    with pytest.raises(GateError):
        check(lambda batch: session.run(None, dict(zip(names, batch.padded(), strict=True)))[0], suite, tokenizer)


def test_zero_vectors_stay_finite(exported: Callable[[str], Exported]) -> None:
    """Recipe 6: the last Dense gives zeros, and normalising them gives zeros again."""
    bundle = exported("cls-dense-norm-dense-cut").bundle
    model = onnx.load(bundle.graph_file(bundle.graphs[0]))
    last = [tensor for tensor in model.graph.initializer if list(tensor.dims) == [24, 24]]
    assert len(last) == 1
    last[0].CopyFrom(numpy_helper.from_array(np.zeros((24, 24), np.float32), last[0].name))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {tensor.name: np.ones((2, 4), np.int64) for tensor in session.get_inputs()}
    assert (session.run(None, feed)[0] == 0).all()


def test_cut_is_baked_in(exported: Callable[[str], Exported], few_lines: None) -> None:
    """Matryoshka: another space, the same weights, and what cutting the whole vectors gives."""
    one = exported("cls-dense-norm-dense-cut")
    spec, whole = one.bundle.spec, load_checkpoint(one.checkpoint).spec
    assert [dict(module) for module in spec.modules[-2:]] == [{"type": "Truncate", "dim": 8}, {"type": "Normalize"}]
    assert one.bundle.graphs[0].outputs[0].axes == ("batch", 8)
    assert (whole.dim, spec.dim) == (24, 8)
    assert whole.fingerprint != spec.fingerprint
    assert whole.weights_sha256 == spec.weights_sha256
    with Encoder(one.bundle.path, threads=1) as cut, Encoder(one.checkpoint, threads=1) as source:
        np.testing.assert_allclose(source.encode(TEXTS[:4], dim=8), cut.encode(TEXTS[:4]), atol=2e-6)
    assert all(verdict.parity for verdict in verify_bundle(one.bundle, one.checkpoint))


def test_width_is_an_option_and_a_saved_one_is_told(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    one = exported("dense-on-tokens-and-normalize-in-the-middle")
    folder = Path(shutil.copytree(one.checkpoint, tmp_path / "model"))
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncate_dim": 5}))
    saved = load_checkpoint(folder)
    assert dict(saved.spec.modules[-1]) == {"type": "Truncate", "dim": 5}
    assert any("cut to 5 of 16 values (truncate_dim in config_sentence" in remark for remark in saved.remarks)
    with Encoder(folder, threads=1) as mine:
        np.testing.assert_allclose(
            mine.encode(TEXTS[:4]), SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:4]), atol=2e-6
        )
    assert dict(load_checkpoint(folder, dim=5).spec.modules[-1]) == {"type": "Truncate", "dim": 5}
    assert load_checkpoint(folder, dim=16).spec.fingerprint == one.bundle.spec.fingerprint
    for wrong in (0, 17):
        with pytest.raises(
            CheckpointError, match=f"dim {wrong} was asked for, but this model's vectors have 16 values"
        ):
            load_checkpoint(folder, dim=wrong)
    assert main(["export", str(folder), "--out", str(tmp_path / "out"), "--dim", "17", "-q"]) == 2


def test_average_of_layers_passes_the_gate_and_is_verified_from_its_source(tmp_path: Path, few_lines: None) -> None:
    plain = build_transformer(tmp_path / "plain")
    out = tmp_path / "out.bundle"
    bundle = read_bundle(export_tiny(plain, out, ("portable",), pooling="avg_first_last", layouts=LAYOUTS))
    layers: dict[str, Any] = dict(bundle.spec.modules[1])
    assert (layers["type"], list(layers["layers"])) == ("LayerMean", [1, -1])
    assert bundle.spec.normalized
    assert all(verdict.parity for verdict in verify_bundle(bundle, plain))
