"""Engine ``native``: kernels at odd sizes, the same bits in any company, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

native = pytest.importorskip("sentport_native", reason="needs a C++ compiler: make native")

from sentport import Encoder  # noqa: E402
from sentport.batch import TokenBatch  # noqa: E402
from sentport.bundle import Bundle, read_bundle, sha256_of  # noqa: E402
from sentport.engines.native import NativeEngine, make_model, run_model, runs  # noqa: E402
from sentport.engines.native_file import METADATA, read_native  # noqa: E402
from sentport.errors import BundleError, EngineError, GraphError, InputError, PrecisionError  # noqa: E402

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
    """From 1 to 130 rows, each with other widths, 1 to 16 heads, and every row again alone."""
    native.check(level, every=12 if level == "plain" else 1)  # plain is slow


def innermost_loops(binary: Path) -> Iterator[str]:
    """The instructions of every loop without a jump or call inside, of any level, whatever this CPU runs."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(binary)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^ *([0-9a-f]+):\t(.*)$", text, re.MULTILINE)
    index = {address: number for number, (address, _) in enumerate(lines)}
    for end, (_, instruction) in enumerate(lines):
        jump = re.match(r"j\w+ +([0-9a-f]+)", instruction)
        start = index.get(jump[1], end) if jump else end
        body = [instruction for _, instruction in lines[start:end]]
        if 0 < len(body) < 300 and not any(re.match("j|call|ret", instruction) for instruction in body):
            yield "\n".join(body)


@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump; Debian: apt-get install binutils")
def test_the_sums_of_a_product_stay_in_registers() -> None:
    """A compiler that keeps some of them on the stack makes a level half as fast, unseen where no CPU runs it."""
    loops = list(innermost_loops(Path(native._native.__file__)))
    for dot in ("vfmadd231ps", "vpmaddubsw", "vpdpbusd", "vdpbf16ps"):
        products = [loop for loop in loops if loop.count(dot) >= 8 and loop.count("broadcast") >= 2]
        # Activation functions divide. bf16 on AVX2 is a twin for the gate, which shifts halves and is never chosen.
        products = [loop for loop in products if not re.search("vdivps|vpslld", loop)]
        assert products, dot
        stored = re.compile(r"^v\S+ +%[yz]mm\d+,-?(0x[0-9a-f]+)?\(.*", re.MULTILINE)
        assert [found[0] for loop in products if (found := stored.search(loop))] == [], dot


def test_a_level_that_the_cpu_does_not_run_is_refused() -> None:
    unknown = {"avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16"} - {*native.levels()}
    for level in {"mmx", *unknown}:
        with pytest.raises(ValueError, match=f"level {level}"):
            native.check(level, every=100)


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


def test_a_binary_that_cannot_be_imported_is_not_called_missing(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "sentport_native.py").write_text("raise ImportError('libstdc++.so.6: GLIBCXX_9 not found')")
    found = subprocess.run(
        [sys.executable, "-c", f"from sentport import Encoder; Encoder({str(tiny_bundle)!r})"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        "EngineError: engine native is installed and cannot be imported (libstdc++.so.6: GLIBCXX_9 not found)"
        in found.stderr
    )
    assert "engine onnxruntime" in found.stderr


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


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bundle: Bundle, value: float) -> None:
    """Comparisons drop a NaN, so vectors would be finite and wrong."""
    content = read_native(bundle.graph_file(bundle.native[0]))

    def changed(name: str) -> native.Model:
        array = np.array(content.arrays[name])
        array[-1] = value
        return make_model(content._replace(arrays={**content.arrays, name: array}), native.levels()[-1])

    for name in ("layers.1.up.weight", "layers.0.qkv.bias", "layers.1.output_norm.weight", "embeddings.position"):
        with pytest.raises(ValueError, match=f"{name} has a value that is no finite number"):
            changed(name)
    model = changed("embeddings.word")  # which is not read before it is needed
    last, length = len(content.arrays["embeddings.word"]) - 1, np.array([3], np.int32)
    assert np.isfinite(model.run(np.array([2, 7, 3]), length, None, None, threads=1, block_tokens=9)).all()
    with pytest.raises(ValueError, match=f"the embedding of id {last} is not finite"):
        model.run(np.array([2, last, 3]), length, None, None, threads=1, block_tokens=9)


def test_bf16_is_refused_by_name_where_no_instruction_multiplies_it(bundle: Bundle) -> None:
    assert not runs("bf16", "avx2")
    record = replace(bundle.native[0], precision="bf16")
    with pytest.raises(PrecisionError, match="is bf16, which needs a CPU with AVX512-BF16; this one offers avx2"):
        NativeEngine(bundle, record, level="avx2")


def test_closed_engine_says_so(engine: NativeEngine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run(TokenBatch.from_rows([[2, 3]]))


def test_a_forked_child_goes_on_encoding(bundle: Bundle) -> None:
    """Whatever other threads were doing at that moment: they are not there in the child."""
    model = make_model(read_native(bundle.graph_file(bundle.native[0])), native.levels()[-1])
    batch, over = TokenBatch.from_rows([[2, 7, 3]] * 3), threading.Event()
    wanted = run_model(model, batch, 1)

    def encode() -> None:
        while not over.is_set():
            run_model(model, batch, 1)

    others = [threading.Thread(target=encode) for _ in range(2)]
    for other in others:
        other.start()
    for _ in range(12):
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for a lock is ended, and found out
            found = [run_model(model, batch, 2) for _ in range(3)]
            os._exit(0 if all(np.array_equal(vectors, wanted) for vectors in found) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    over.set()
    for other in others:
        other.join()


def test_closing_while_others_encode_is_told_to_them(bundle: Bundle) -> None:
    engine = NativeEngine(bundle, bundle.native[0], threads=2)
    batch = TokenBatch.from_rows([[2, 7, 3]] * 500)
    wanted, refused = engine.run(batch), []

    def encode() -> None:
        try:
            while True:
                assert np.array_equal(engine.run(batch), wanted)
        except EngineError as error:
            refused.append(str(error))

    others = [threading.Thread(target=encode) for _ in range(3)]
    for other in others:
        other.start()
    engine.close()
    for other in others:
        other.join(20)
    assert refused == ["this engine is closed; open a new Encoder"] * 3


def test_many_models_at_once_with_more_threads_than_cores(bundle: Bundle) -> None:
    batch = TokenBatch.from_rows([[2, *range(5, 5 + n % 19), 3] for n in range(300)])
    content = read_native(bundle.graph_file(bundle.native[0]))
    models = [make_model(content, native.levels()[-1]) for _ in range(6)]
    wanted = run_model(models[0], batch, 1)
    with ThreadPoolExecutor(len(models)) as pool:
        found = list(pool.map(lambda model: run_model(model, batch, 1000), models))
    assert all(np.array_equal(vectors, wanted) for vectors in found)
    for threads in (0, -1):
        with pytest.raises(ValueError, match="threads and block_tokens are 1 or more"):
            run_model(models[0], batch, threads)


def with_header(header: dict[str, object], data: bytes) -> bytes:
    """A file's arrays under another header."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]


def damaged(data: bytes) -> dict[str, bytes]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    def changed(**values: object) -> bytes:
        record = {**header["embeddings.word"], **values}
        return with_header({**header, "embeddings.word": record}, data)

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
        "odd header": (length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :],
        "no matrix": changed(shape=[0, 1 << 70], data_offsets=[0, 0]),
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
        with pytest.raises(GraphError, match="is damaged"):
            read_native(file)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 3}, "tensor layers.2.qkv.weight is missing"),
        ({"layers": 0}, "a model of 0 layers"),
        ({"layers": 1 << 40}, "a value of its description is of another type than expected"),
        ({"heads": 5}, "5 heads cannot have width 32"),
        ({"heads": 0}, "0 heads"),
        ({"activation": "swi\nsh"}, "activation swi sh is unknown"),
        ({"epsilon": float("nan")}, "epsilon nan is not a small number"),
        ({"epsilon": -1e-5}, "is not a small number"),
        ({"pad_id": 2**31 - 1}, "pad_id 2147483647 has no position"),
        ({"pooling": []}, "0 modes of pooling"),
        ({"pooling": ["cls"] * (1 << 16)}, "65536 modes of pooling"),
        ({"pooling": ["median"]}, "pooling median is unknown"),
        ({"modules": [["Truncate", "-1"]]}, "cuts vectors to -1"),
        ({"modules": [["Dense", "Swish"]]}, "modules.0: Swish"),
        ({"modules": [["Residual", ""]]}, "module Residual is unknown"),
        ({"modules": 7}, "of another type than expected"),
        ({"modules": []}, "gives vectors of 32, bundle.json says 24"),
    ],
)
def test_a_description_that_cannot_be_is_refused(
    bundle: Bundle, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    record = bundle.native[0]
    data = bundle.graph_file(record).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header["__metadata__"] = {METADATA: json.dumps({**json.loads(header["__metadata__"][METADATA]), **changes})}
    file = tmp_path / record.file
    file.parent.mkdir()
    file.write_bytes(with_header(header, data))
    with pytest.raises(GraphError, match=said):
        NativeEngine(replace(bundle, path=tmp_path), replace(record, sha256=sha256_of(file)))


# In a process of its own, whose memory nothing else has stretched before.
_A_MILLION_CALLS = """
import sys
from pathlib import Path
import numpy as np
import sentport_native
from sentport.engines.native import make_model
from sentport.engines.native_file import METADATA, read_native

model = make_model(read_native(Path(sys.argv[1])), sentport_native.levels()[-1])
random = np.random.default_rng(0)
calls = []
for call in range(5000):
    lengths = random.integers(1, 9, random.integers(1, 4)).astype(np.int32)
    calls.append((random.integers(5, 25, lengths.sum()), lengths, 1 + call % 2, int(random.integers(4, 30))))
for call in range(1_000_000):
    ids, lengths, threads, block = calls[call % len(calls)]
    model.run(ids, lengths, None, None, threads=threads, block_tokens=block)
    if call + 1 in (100_000, 1_000_000):
        print(int(Path("/proc/self/statm").read_text().split()[1]))
"""


@pytest.mark.full
def test_memory_stays_flat_over_a_million_small_calls(bundle: Bundle) -> None:
    """Of 1 to 3 rows of 1 to 8 tokens, by one thread and by two."""
    file = bundle.graph_file(bundle.native[0])
    done = subprocess.run([sys.executable, "-c", _A_MILLION_CALLS, file], capture_output=True, text=True, check=True)
    early, late = map(int, done.stdout.split())
    assert late <= 1.01 * early
