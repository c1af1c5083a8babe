"""The encoder: order, awkward texts, limits, prompts, dims, errors."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import sentport.encoder as module
from sentport.encoder import Encoder
from sentport.errors import EngineError, InputError, SentportError, TruncationError
from sentport.hardware import available_cores
from sentport.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return Encoder(tiny_bundle, threads=1, on_truncate="allow")


# What runs where nothing is asked for.
NATIVE = find_spec("sentport_native") is not None
USUAL = ("native", "fp32", "packed", "cpu") if NATIVE else ("onnxruntime", "fp32", "padded", "cpu")
AWKWARD = [
    "the cat sat on the mat .",
    "",
    " ",
    "\n\t",
    "a",
    "日本",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301 é",
    "\x00\x07\u0085 the",
    "the cat " * 12_500,  # 100 kB
    "a",
    "\u202ecat\u200b",
    "the cat sat on the mat .",
]


def test_awkward_texts_keep_order_and_equal_themselves_alone(encoder: Encoder) -> None:
    together = encoder.encode(AWKWARD)
    assert together.shape == (len(AWKWARD), 24)
    assert together.dtype == np.float32
    assert np.isfinite(together).all()
    for row, text in enumerate(AWKWARD):
        np.testing.assert_allclose(together[row], encoder.encode([text])[0], atol=2e-6)
    assert (together[0] == together[-1]).all()
    assert not np.allclose(together[0], together[5])


def test_awkward_texts_equal_sentence_transformers(encoder: Encoder, tiny_checkpoint: Path) -> None:
    from sentence_transformers import SentenceTransformer

    source = SentenceTransformer(str(tiny_checkpoint), device="cpu")
    np.testing.assert_allclose(encoder.encode(AWKWARD), source.encode(AWKWARD), atol=1e-5)


def test_nothing_in_nothing_out(encoder: Encoder) -> None:
    for result in (encoder.encode([]), encoder.encode([], dim=8)):
        assert result.dtype == np.float32
    assert encoder.encode([]).shape == (0, 24)
    assert encoder.encode([], dim=8).shape == (0, 8)


def test_bad_rows_are_listed_in_one_error(encoder: Encoder) -> None:
    with pytest.raises(
        InputError, match=r"3 of 5 rows .* rows 1 \(NoneType, not text\), rows 2 \(int, .*rows 4 \(lone"
    ) as e:
        encoder.encode(["a", None, 3, "cat", "x\ud800y"])  # type: ignore[list-item]
    assert e.value.rows == (1, 2, 4)


def test_bare_string_is_a_type_error_with_the_way_out(encoder: Encoder) -> None:
    with pytest.raises(TypeError, match=r"encode\(\[text\]\)"):
        encoder.encode("the cat")


def test_lone_surrogates_can_be_replaced(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, errors="replace") as encoder:
        vectors = encoder.encode(["the \ud800 cat", "the \ufffd cat", "\ud83d\ude00", "\U0001f600"])
    assert (vectors[0] == vectors[1]).all()
    assert (vectors[2] == vectors[3]).all()


def test_truncation_is_told_once_a_call(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "the cat " * 40
    with caplog.at_level(logging.WARNING), Encoder(tiny_bundle) as encoder:
        encoder.encode(["a", long, "b", long])
        encoder.encode(["a"])
    (record,) = caplog.records
    assert "2 of 4 texts are longer than 48 tokens (longest 82)" in record.message
    assert "rows 1, 3 (lengths 82, 82)" in record.message
    with Encoder(tiny_bundle, on_truncate="error") as encoder, pytest.raises(TruncationError) as caught:
        encoder.encode(["a", long])
    assert (caught.value.rows, caught.value.tokens) == ((1,), (82,))


def test_more_threads_than_cores_are_told(tiny_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They run all the same: bits do not depend on it, speed does."""
    cores = available_cores()
    with Encoder(tiny_bundle, threads=cores), Encoder(tiny_bundle, threads=cores + 1):
        (record,) = caplog.records
    assert record.getMessage().startswith(f"threads is {cores + 1}, and this process may use {cores} core")


@pytest.mark.parametrize("policy", ["warn", "error", "allow"])
def test_a_text_is_tokenised_once_whatever_is_told_about_it(
    tiny_bundle: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    whole = Tokenizer.encode_whole

    def counted(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        seen.extend(texts)
        return whole(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_whole", counted)
    texts = ["a", "the cat " * 40, "a"]
    with Encoder(tiny_bundle, threads=1, on_truncate=policy) as encoder:
        with contextlib.suppress(TruncationError):
            encoder.encode(texts)
        assert seen == texts[:2]
        seen.clear()
        encoder.tokenize(texts)
        assert seen == texts


def test_tokenize_counts_before_and_after_the_limit(encoder: Encoder) -> None:
    counts = encoder.tokenize(["the cat", "the cat " * 40, ""])
    assert counts.full.tolist() == [4, 82, 2]
    assert counts.used.tolist() == [4, 48, 2]
    assert encoder.tokenize(["sat"], prompt="query").full.tolist() == [5]
    assert encoder.tokenize([]).full.tolist() == []
    with pytest.raises(InputError, match="rows 1 "):
        encoder.tokenize(["a", "\ud800"])


def test_prompts_are_saved_names(encoder: Encoder) -> None:
    by_name = encoder.encode(["sat on"], prompt="query")
    assert (by_name == encoder.encode(["the cat sat on"])).all()
    assert (encoder.encode(["sat on"], prompt="") == encoder.encode(["sat on"])).all()
    # the fixture's prompts: sentence-transformers adds an empty "document" of its own
    with pytest.raises(SentportError, match=r"prompt 'qery' is not saved with this model; known: .*passage, query"):
        encoder.encode(["sat"], prompt="qery")


def test_dim_cuts_and_normalises_again(encoder: Encoder) -> None:
    full, cut = encoder.encode(["the cat", "a dog"]), encoder.encode(["the cat", "a dog"], dim=8)
    np.testing.assert_allclose(cut, full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True), rtol=1e-6)
    one = full[:1].copy()
    encoder.shorten(one, 8)
    assert (one == full[:1]).all(), "the vectors handed in are left alone"
    for bad in (0, 25, True, 2.0):
        with pytest.raises(SentportError, match="from 1 to 24"):
            encoder.encode(["a"], dim=bad)  # type: ignore[arg-type]


def test_stream_gives_blocks_in_order_and_isolates_bad_rows(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STREAM_ROWS", 4)
    texts = ["cat", "dog", "\ud800", "mat", "sat", "", "park"]
    blocks = list(encoder.encode_stream(iter(texts), dim=8))
    assert [len(block) for block in blocks] == [4, 3]
    vectors = np.concatenate(blocks)
    assert np.isnan(vectors[2]).all()
    good = [row for row in range(len(texts)) if row != 2]
    np.testing.assert_allclose(vectors[good], encoder.encode([texts[row] for row in good], dim=8), atol=2e-6)
    assert "rows 2 of the stream" in caplog.text
    with pytest.raises(TypeError):
        encoder.encode_stream("cat")
    with pytest.raises(SentportError, match="dim is 25"):
        encoder.encode_stream([], dim=25)


def test_several_threads_share_one_encoder(encoder: Encoder) -> None:
    texts = [[f"the cat {'sat ' * (n % 5)}{worker}" for n in range(40)] for worker in range(6)]
    wanted = [encoder.encode(rows) for rows in texts]
    found: dict[int, np.ndarray] = {}

    def work(worker: int) -> None:
        found[worker] = encoder.encode(texts[worker])

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in range(6):
        np.testing.assert_allclose(found[worker], wanted[worker], atol=2e-6)


def test_closed_encoder_says_so(tiny_bundle: Path, tiny_checkpoint: Path) -> None:
    for source in (tiny_bundle, tiny_checkpoint):
        encoder = Encoder(source, threads=1)
        encoder.close()
        encoder.close()
        with pytest.raises(EngineError, match="this engine is closed"):
            encoder.encode(["cat"])


def test_info_says_what_runs(encoder: Encoder, tiny_checkpoint: Path) -> None:
    info = encoder.info
    assert (info.dim, info.max_tokens, info.similarity) == (24, 48, "cosine")
    assert (info.engine, info.precision, info.layout, info.device) == USUAL
    assert info.threads * info.sessions == 1
    assert info.prompts["query"] == "the cat "
    torch = Encoder(tiny_checkpoint, threads=1)
    assert torch.info.engine == "torch"
    assert torch.info.fingerprint == info.fingerprint
    np.testing.assert_allclose(torch.encode(["the cat"]), encoder.encode(["the cat"]), atol=1e-5)


def test_two_threads_are_two_sessions_with_the_same_vectors(
    encoder: Encoder, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"the cat {'sat on ' * (row % 9)}the mat" for row in range(100)]
    with Encoder(tiny_bundle, "onnxruntime", threads=2) as two:
        assert (two.info.sessions, two.info.threads) == (2, 1)
        np.testing.assert_allclose(two.encode(texts), encoder.encode(texts), atol=1e-6)
        np.testing.assert_allclose(two.encode(texts[:1]), encoder.encode(texts[:1]), atol=1e-6)
    monkeypatch.setattr("sentport.engines.onnxruntime._TWICE_BYTES", 0)
    with Encoder(tiny_bundle, "onnxruntime", threads=2) as large:  # too large to be held twice
        assert (large.info.sessions, large.info.threads) == (1, 2)
        np.testing.assert_allclose(large.encode(texts), encoder.encode(texts), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "torch"}, "engine torch runs checkpoints"),
        ({"engine": "warp"}, "engine 'warp' is unknown"),
        ({"precision": "int8"}, "it holds padded fp32"),
        ({"layout": "ragged"}, "layout 'ragged' is unknown; known: auto, padded, packed"),
        ({"layout": "packed"}, r"has no graph of layout packed; `sentport export .* --layout padded,packed` makes one"),
        ({"threads": 0}, "threads is 0"),
        ({"on_truncate": "maybe"}, "expected one of warn, error, allow"),
        ({"errors": "ignore"}, "expected one of raise, replace"),
        ({"device": "tpu"}, "device 'tpu' is unknown"),
    ],
)
def test_what_cannot_be_had_is_refused(tiny_bundle: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(SentportError, match=message):
        Encoder(tiny_bundle, **options)  # type: ignore[arg-type]


def test_cuda_without_cuda_is_one_clear_error(tiny_bundle: Path, tiny_checkpoint: Path) -> None:
    from sentport.hardware import cuda_devices

    if cuda_devices():
        pytest.skip("this machine has a CUDA device")
    for source in (tiny_bundle, tiny_checkpoint):
        with pytest.raises(EngineError, match="device cuda was asked for, but ") as caught:
            Encoder(source, device="cuda")
        assert "sentport doctor" in str(caught.value)


def test_checkpoint_on_the_onnx_engine_asks_for_an_export(tiny_checkpoint: Path) -> None:
    with pytest.raises(EngineError, match="export it first"):
        Encoder(tiny_checkpoint, engine="onnxruntime")


def test_torch_has_one_layout(tiny_checkpoint: Path) -> None:
    with pytest.raises(EngineError, match=r"runs layout padded only, not packed; export .*tiny and open the bundle"):
        Encoder(tiny_checkpoint, layout="packed")


def test_absent_source_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(SentportError, match="sentport export"):
        Encoder(tmp_path / "nothing")
