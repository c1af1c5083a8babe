"""Engine ``native``: kernels at odd sizes, the same bits in any company, and what it refuses."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

native = pytest.importorskip("sentport_native", reason="needs a C++ compiler: make native")

from sentport import Encoder  # noqa: E402
from sentport.batch import TokenBatch  # noqa: E402
from sentport.bundle import Bundle, read_bundle  # noqa: E402
from sentport.engines.native import NativeEngine, make_model, runs  # noqa: E402
from sentport.engines.native_file import read_native  # noqa: E402
from sentport.errors import BundleError, EngineError, InputError, PrecisionError  # noqa: E402

TEXTS = [f"the {'red cat ' * (row % 11)}sat on {'a mat ' * (row % 7)}" for row in range(60)]
LEVELS = ("plain", *native.levels())


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return read_bundle(tiny_bundle)


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[NativeEngine]:
    engine = NativeEngine(bundle, bundle.native[0], threads=2)
    yield engine
    engine.close()


@pytest.mark.parametrize("level", LEVELS)
def test_kernels_compute_what_their_scalar_references_do(level: str) -> None:
    """Every rest of a row tile, sizes on both sides of a vector, a panel, a block of inputs and a tile of keys."""
    small = [(rows, inputs, outputs) for rows in range(1, 14) for inputs, outputs in ((1, 1), (33, 65), (68, 17))]
    large = [(130, 385, 66), (129, 64, 64), (127, 63, 129), (64, 770, 15)] if level != "plain" else [(130, 40, 9)]
    for number, (rows, inputs, outputs) in enumerate(small + large):
        heads, head = 1 + number % 16, 1 + 5 * number % 37
        native.check(level, rows=rows, inputs=inputs, outputs=outputs, heads=heads, head=head, seed=number)


def test_a_level_that_the_cpu_does_not_run_is_refused() -> None:
    unknown = {"avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16"} - {*native.levels()}
    for level in {"mmx", *unknown}:
        with pytest.raises(ValueError, match=f"level {level}"):
            native.check(level, rows=1, inputs=1, outputs=1, heads=1, head=1, seed=0)


def test_encoder_prefers_it_on_a_cpu_and_a_named_layout_is_a_graph(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, threads=2) as usual, Encoder(tiny_bundle, layout="padded", threads=1) as graph:
        assert (usual.info.engine, usual.info.layout, usual.info.device) == ("native", "packed", "cpu")
        assert (usual.info.sessions, usual.info.threads) == (2, 1)
        assert graph.info.engine == "onnxruntime"
        np.testing.assert_allclose(usual.encode(TEXTS), graph.encode(TEXTS), atol=1e-6)
    with pytest.raises(BundleError, match="no graph of layout padded"):
        Encoder(tiny_bundle, engine="native", layout="padded")
    with pytest.raises(EngineError, match="device 'cuda' is unknown to engine native; it knows auto, cpu"):
        Encoder(tiny_bundle, engine="native", device="cuda")


def test_a_text_has_the_same_bits_in_any_company_at_any_thread_count(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, threads=1) as one, Encoder(tiny_bundle, threads=3) as three:
        together = three.encode(TEXTS)
        assert np.array_equal(one.encode(TEXTS), together)
        alone = np.concatenate([one.encode([text]) for text in TEXTS])
        assert np.array_equal(alone, together)


def test_blocks_do_not_change_a_vector(bundle: Bundle) -> None:
    model = make_model(read_native(bundle.graph_file(bundle.native[0])), native.levels()[-1])
    lengths = np.array([3, 0, 40, 1, 17, 29], np.int32)
    ids = np.random.default_rng(0).integers(0, 25, lengths.sum())
    wanted = model.run(ids, lengths, None, None, threads=1, block_tokens=1000)
    for block in (1, 18, 45):
        assert np.array_equal(model.run(ids, lengths, None, None, threads=2, block_tokens=block), wanted)
    assert np.isfinite(wanted).all()


def test_pads_are_left_out_and_cannot_be_pooled(engine: NativeEngine) -> None:
    rows = TokenBatch.from_rows([[2, 7, 3], [2, 5, 6, 9, 3]])
    wide = np.array([2, 7, 3, 19, 20, 2, 5, 6, 9, 3], np.int64)
    mask = np.array([1, 1, 1, 0, 0, 1, 1, 1, 1, 1], np.int64)
    padded = TokenBatch(wide, np.array([5, 5], np.int32), mask)
    assert np.array_equal(engine.run(padded), engine.run(rows))
    with pytest.raises(EngineError, match="this model pools every token"):
        engine.run(TokenBatch(wide, padded.lengths, mask, pooling_mask=mask))
    empty = engine.run(TokenBatch.from_rows([]))
    assert empty.shape == (0, 24)


@pytest.mark.parametrize(
    ("ids", "types", "said"),
    [
        ([2, 25, 3], None, "token 1 of row 0 has id 25; the vocabulary has 25"),
        ([2, -1, 3], None, "has id -1"),
        ([2, 7, 3], [0, 2, 0], "token 1 of row 0 has type 2"),
        ([2] * 65, None, "row 0 has more tokens than the model has positions"),
    ],
)
def test_what_would_lead_out_of_a_table_is_refused(
    engine: NativeEngine, ids: list[int], types: list[int] | None, said: str
) -> None:
    table = None if types is None else np.array(types, np.int64)
    batch = TokenBatch(np.array(ids, np.int64), np.array([len(ids)], np.int32), token_type_ids=table)
    with pytest.raises(InputError, match=said):
        engine.run(batch)


def test_bf16_is_refused_by_name_where_no_instruction_multiplies_it(bundle: Bundle) -> None:
    from dataclasses import replace

    assert not runs("bf16", "avx2")
    record = replace(bundle.native[0], precision="bf16")
    with pytest.raises(PrecisionError, match="is bf16, which needs a CPU with AVX512-BF16; this one offers avx2"):
        NativeEngine(bundle, record, level="avx2")


def test_closed_engine_says_so(engine: NativeEngine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run(TokenBatch.from_rows([[2, 3]]))


def test_a_forked_child_goes_on_encoding(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, threads=2) as encoder:
        wanted = encoder._engine.run(TokenBatch.from_rows([[2, 7, 3]] * 200))
        child = os.fork()
        if child == 0:
            found = encoder._engine.run(TokenBatch.from_rows([[2, 7, 3]] * 200))
            os._exit(0 if np.array_equal(found, wanted) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def damaged(data: bytes) -> dict[str, bytes]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    def changed(**values: object) -> bytes:
        record = {**header["embeddings.word"], **values}
        text = json.dumps({**header, "embeddings.word": record}).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "long header": (1 << 60).to_bytes(8, "little") + data[8:],
        "no json": data[:8] + b"x" * length + data[8 + length :],
        "beyond the end": changed(data_offsets=[0, 1 << 40]),
        "backwards": changed(data_offsets=[128, 0]),
        "shape": changed(shape=[1 << 40, 32]),
        "negative": changed(shape=[-25, -32]),
        "type": changed(dtype="F64"),
        "smaller": changed(shape=[24, 32], data_offsets=[0, 24 * 32 * 4]),
    }


def test_a_damaged_file_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    data = bundle.graph_file(bundle.native[0]).read_bytes()
    for name, content in damaged(data).items():
        file = tmp_path / name
        file.write_bytes(content)
        if name == "smaller":  # a smaller vocabulary is a model, and its ids end earlier
            model = make_model(read_native(file), native.levels()[-1])
            with pytest.raises(ValueError, match="the vocabulary has 24"):
                model.run(np.array([24]), np.array([1], np.int32), None, None, threads=1, block_tokens=1)
            continue
        with pytest.raises(BundleError, match="is damaged"):
            read_native(file)


@pytest.mark.full
def test_memory_stays_flat_over_a_million_small_calls(bundle: Bundle) -> None:
    model = make_model(read_native(bundle.graph_file(bundle.native[0])), native.levels()[-1])
    random = np.random.default_rng(0)
    batches = [np.concatenate([[2], random.integers(5, 25, n), [3]]) for n in random.integers(0, 30, 1000)]
    peak = 0
    for call in range(1_000_000):
        ids = batches[call % 1000]
        model.run(ids, np.array([len(ids)], np.int32), None, None, threads=1, block_tokens=192)
        if call == 100_000:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= 1.01 * peak
