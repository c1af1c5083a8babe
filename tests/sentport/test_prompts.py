"""Prompts whose tokens stay out of pooling (``include_prompt: false``), against sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import build_checkpoint, build_transformer, export_tiny
from ragged_models import Ragged, request
from sentence_transformers import SentenceTransformer

from sentport.batch import TokenBatch
from sentport.bundle import LAYOUTS, read_bundle
from sentport.encoder import Encoder
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import CheckpointError, EngineError, TruncationError
from sentport.modeling.checkpoint import load_checkpoint
from sentport.tokenizer import Tokenizer
from triton_repo import form_ragged
from triton_repo.model_text import TextModel
from triton_repo.repository import write_repository
from triton_repo.requests import TextRequest
from triton_repo.wanted import Wanted

TEXTS = ["sat on the mat .", "", "a dog", "日本", "the red mat " * 30, "a dog", "the cat sat"]
# One, a longer one, and one that truncation cuts so that nothing but the last special token is left to pool.
PROMPTS = {"query": "the cat ", "passage": "a blue dog ran , ", "endless": "the cat " * 40}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    folder = build_checkpoint(tmp_path_factory.mktemp("prompts") / "all", pooling=("cls", "mean"), dense=False)
    model = SentenceTransformer(str(folder), device="cpu", prompts=PROMPTS, default_prompt_name="query")
    model.set_pooling_include_prompt(False)
    return model


@pytest.fixture(scope="module")
def checkpoint(source: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts") / "checkpoint"
    source.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prompts") / "prompts.bundle"
    return export_tiny(checkpoint, out, flavours=("ort",), layouts=LAYOUTS)


@pytest.fixture(scope="module", params=LAYOUTS)
def encoder(bundle: Path, request: pytest.FixtureRequest) -> Encoder:
    return Encoder(bundle, layout=request.param, threads=1, on_truncate="allow")


def of_source(source: SentenceTransformer, texts: list[str], prompt: str | None) -> np.ndarray:
    return source.encode(texts, prompt="") if prompt == "" else source.encode(texts, prompt_name=prompt)


@pytest.mark.parametrize("prompt", ["query", "passage", "endless", "", None])
@pytest.mark.parametrize(("engine", "layout"), [*(("onnxruntime", layout) for layout in LAYOUTS), ("torch", "padded")])
def test_prompt_tokens_stay_out_of_pooling(
    source: SentenceTransformer, bundle: Path, checkpoint: Path, engine: str, layout: str, prompt: str | None
) -> None:
    folder = checkpoint if engine == "torch" else bundle
    runs = Encoder(folder, layout=layout, threads=1, on_truncate="allow")
    assert (runs.info.engine, runs.info.layout) == (engine, layout)
    found = runs.encode(TEXTS, prompt=prompt)
    np.testing.assert_allclose(found, of_source(source, TEXTS, prompt), atol=1e-5)
    if prompt:
        pooled_with_it = runs.encode([PROMPTS[prompt] + text for text in TEXTS], prompt="")
        assert np.abs(found - pooled_with_it).max() > 0.01


def test_requests_with_other_prompts_share_an_execution(source: SentenceTransformer, encoder: Encoder) -> None:
    # With their prompts in front, the first and the third text are the same tokens, pooled in two ways.
    asked = [("query", ["sat", "a dog"]), ("passage", ["sat"]), ("", ["the cat sat", "sat"]), ("endless", ["sat"])]
    refused, *answers = TextModel(encoder).answer(
        [
            TextRequest([b"a dog"], {"prompt": "endless", "on_truncate": "error"}),
            *(TextRequest([text.encode() for text in texts], {"prompt": prompt}) for prompt, texts in asked),
        ]
    )
    assert isinstance(refused, TruncationError)
    for (prompt, texts), answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer.embedding, of_source(source, texts, prompt), atol=1e-5)
    assert np.abs(answers[0].embedding[0] - answers[2].embedding[0]).max() > 0.01


def test_a_text_is_computed_once_under_its_prompt(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    run = OnnxRuntimeEngine.run

    def counted(self: OnnxRuntimeEngine, batch: TokenBatch, *, beside: bool = False) -> np.ndarray:
        rows.append(len(batch.lengths))
        return run(self, batch, beside=beside)

    monkeypatch.setattr(OnnxRuntimeEngine, "run", counted)
    encoder.encode(["sat", "a dog", "sat"], prompt="query")
    assert sum(rows) == 2
    rows.clear()
    same = TextRequest([b"sat"], {"prompt": "query"})
    TextModel(encoder).answer([same, same, TextRequest([b"the cat sat"], {"prompt": ""})])
    assert sum(rows) == 2


def test_a_bundle_gives_its_parity_texts_without_the_default_prompt(bundle: Path) -> None:
    from export.texts import PARITY_TEXTS

    assert read_bundle(bundle).golden_texts() == list(PARITY_TEXTS)


def test_a_mask_that_the_graph_does_not_take_is_refused(tiny_bundle: Path, tiny_checkpoint: Path) -> None:
    for folder in (tiny_bundle, tiny_checkpoint):
        with Encoder(folder, threads=1) as encoder, pytest.raises(EngineError, match="pooling mask"):
            tokens = encoder.tokens(["the cat"])
            encoder._engine.run(TokenBatch.from_rows(tokens.rows, np.array([1])))


@pytest.mark.parametrize("kind", ["bert", "no special tokens", "begin only"])
def test_prompt_is_counted_as_sentence_transformers_counts_it(kind: str, tmp_path: Path) -> None:
    folder = build_transformer(tmp_path / "plain")
    if kind != "bert":
        write_word_tokenizer(folder, begin=kind == "begin only")
    from sentence_transformers.models import Transformer

    source = Transformer(str(folder), max_seq_length=12)
    ours = Tokenizer((folder / "tokenizer.json").read_text(), 12)
    # "zzz" is no word of the vocabulary: a prompt may end in a token that is special without being an end.
    for prompt in ("the", "the cat ", "the cat zzz", "the zzz cat", "a . " * 20, "[SEP]", "the [MASK]", " "):
        if prompt == " " and kind == "no special tokens":
            assert ours.prompt_tokens(prompt) == 0  # where sentence-transformers fails
        else:
            assert ours.prompt_tokens(prompt) == source._get_prompt_length(prompt), prompt
    assert ours.prompt_tokens("") == 0


def write_word_tokenizer(folder: Path, *, begin: bool) -> None:
    """Words as tokens, and no special token behind the text."""
    from conftest import WORDS
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    fast = FastTokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    fast.pre_tokenizer = WhitespaceSplit()
    if begin:
        fast.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", WORDS.index("[CLS]"))])
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=fast, model_max_length=64, **special).save_pretrained(folder)


def test_tokens_that_only_one_file_calls_special_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    """A prompt is counted up to a special token at its end; sentence-transformers asks another file for those."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    definition = json.loads((folder / "tokenizer.json").read_text())
    word, number = next((word, n) for word, n in definition["model"]["vocab"].items() if word.isalpha())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    definition["added_tokens"].append({"id": number, "content": word, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(CheckpointError, match=rf"differ in which tokens are special \(ids {number}\)"):
        load_checkpoint(folder)


def test_ragged_form_leaves_the_prompt_out(
    bundle: Path, source: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form_ragged, "FLAVOURS", ("ort",))  # the one that this bundle has
    ragged = Ragged(write_repository(Wanted(bundle, form="ragged"), tmp_path / "models"), "prompts")
    assert ragged.inputs == ["input_ids", "attention_mask", "pooling_mask"]
    prompts = ("passage", "", "endless")
    answers = ragged.answer([request(*TEXTS, prompt=prompt) for prompt in prompts])
    for prompt, found in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(found, of_source(source, TEXTS, prompt), atol=1e-5)
