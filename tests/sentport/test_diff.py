"""Two encoders compared: why spaces differ, in words, and the command that says so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import build_checkpoint

from sentport.bundle import DESCRIPTION_FILE, ModelSpec, read_bundle, sha256_of
from sentport.cli import main
from sentport.errors import SentportError
from sentport.evaluation import space_differences, text_cosines


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same transformer, pooled in another way and to another width, and cut earlier."""
    return build_checkpoint(tmp_path_factory.mktemp("other") / "other", pooling="cls", max_tokens=24)


@pytest.fixture
def diff(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """``sentport diff`` in this process, where torch is loaded already: exit code and stdout."""

    def run(a: Path, b: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["diff", str(a), str(b), "--threads", "1", *options])
        return code, capsys.readouterr().out

    return run


Diff = Callable[..., tuple[int, str]]
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"weights_sha256": "0" * 64}, "weights: A has SHA-256 .*, B has SHA-256 000000000000…"),
    "modules": (
        {"modules": ({"type": "Pooling", "modes": ["max"]},)},
        r"module 1: A has Transformer .*, B has Pooling \(modes max",
    ),
    "dim": ({"dim": 8}, "dim: A has 24, B has 8"),
    "tokenizer": ({"tokenizer_sha256": "1" * 64}, "tokenizer: A has SHA-256 .* 111111111111…"),
    "max_tokens": ({"max_tokens": 8}, "max tokens: A has 48, B has 8"),
    "prompts": ({"prompts": {"query": "q: "}}, "prompt 'query': A has 'the cat ', B has 'q: '"),
    "default_prompt": ({"default_prompt": "query"}, "default prompt: A has none, B has 'query'"),
}


def test_every_part_of_the_fingerprint_has_its_words(tiny_bundle: Path) -> None:
    spec = read_bundle(tiny_bundle).spec
    assert set(CHANGES) == set(spec.space) - {"normalized"}, "normalized says nothing that modules does not"


@pytest.mark.parametrize("part", CHANGES)
def test_what_differs_is_said_in_words(tiny_bundle: Path, part: str) -> None:
    spec = read_bundle(tiny_bundle).spec
    changes, said = CHANGES[part]
    other: ModelSpec = replace(spec, **changes)
    assert any(re.match(said, difference) for difference in space_differences(spec, other))
    assert other.fingerprint != spec.fingerprint
    assert space_differences(spec, replace(spec, source="elsewhere", max_tokens_source="guess")) == []


def test_cosines_leave_out_texts_without_vectors() -> None:
    a = np.array([[1, 0], [0, 0], [1, 1], [0, 2]], np.float32)
    b = np.array([[2, 0], [0, 0], [1, 0], [0, -1]], np.float32)
    found = text_cosines(a, b, shown=2)
    assert (found.texts, found.worst_rows) == (3, (3, 2))
    assert found.worst == -1
    assert found.median == pytest.approx(np.sqrt(0.5))
    assert text_cosines(a, np.zeros_like(a)).worst == 0, "zeros on one side only are a difference"
    with pytest.raises(SentportError, match="all 4 texts have zero vectors"):
        text_cosines(np.zeros_like(a), np.zeros_like(a))


def test_a_bundle_is_its_checkpoint(tiny_bundle: Path, tiny_checkpoint: Path, diff: Diff) -> None:
    code, out = diff(tiny_bundle, tiny_checkpoint, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["same_space"]
    assert report["agree"]
    assert report["differences"] == []
    assert report["cosines"]["worst"] > 0.999999
    assert report["neighbours"]["kept"] > 0.99
    assert report["texts"]["origin"] == f"distinct parity texts of {tiny_bundle}"
    native = find_spec("sentport_native") is not None
    expected = ("native", "packed-fp32-native") if native else ("onnxruntime", "padded-fp32-ort")
    assert (report["a"]["engine"], report["a"]["graph"]) == expected
    assert (report["b"]["engine"], report["b"]["graph"]) == ("torch", "padded-fp32")
    assert report["a"]["truncated_rows"] == report["b"]["truncated_rows"] != []


def test_another_space_is_told_with_its_reasons(
    tiny_bundle: Path, other_checkpoint: Path, tmp_path: Path, diff: Diff
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat\n" * 3 + "\n".join(f"the {'red ' * n}dog" for n in range(30)))
    code, text = diff(tiny_bundle, other_checkpoint, "--corpus", str(corpus))
    assert code == 1
    for said in (
        f"31 distinct lines of {corpus}",
        "same space  no,",
        "dim: A has 24, B has 32",
        "max tokens: A has 48, B has 24",
        "module 2: A has Pooling (modes mean, dim 32), B has Pooling (modes cls, dim 32)",
        "module 3: A has Dense (",
        "prompt 'query': A has 'the cat '",
        "undefined between 24 and 32 dimensions",
        "of the 10 nearest,",
        "0 of 31 texts truncated",
        "another space, vectors differ",
    ):
        assert said in text
    assert "9 of 31 texts truncated" in text  # two special tokens, "the", "dog" and from 21 times "red"


def test_worst_texts_are_shown_and_the_bound_decides(tiny_bundle: Path, tmp_path: Path, diff: Diff) -> None:
    damaged = damage(Path(shutil.copytree(tiny_bundle, tmp_path / "damaged.bundle")))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat\na dog ran\n\x1b[31m\n")
    code, text = diff(tiny_bundle, damaged, "--corpus", str(corpus))
    assert code == 1
    assert "same space, vectors differ (worst cosine from 0.9999 up)" in text
    worst = re.findall(r"^cosine +worst (\S+),.*\n +(\S+)  '", text, re.MULTILINE)
    assert worst[0][0] == worst[0][1]
    assert "  'the cat'" in text
    assert "\x1b" not in text
    assert diff(tiny_bundle, damaged, "--corpus", str(corpus), "--min-cosine", "-1")[0] == 0


def damage(bundle: Path) -> Path:
    """Shift the embeddings in the graph that runs, and have bundle.json vouch for the result."""
    import onnx
    from onnx import numpy_helper

    path = bundle / "graphs" / "padded-fp32-ort.onnx"
    model = onnx.load(path)
    largest = max(model.graph.initializer, key=lambda tensor: np.prod(tensor.dims))
    noise = np.random.default_rng(0).normal(size=largest.dims).astype(np.float32)
    largest.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(largest) + noise, largest.name))
    onnx.save(model, path)
    description = json.loads((bundle / DESCRIPTION_FILE).read_text())
    description["native"] = []
    for graph in description["graphs"]:
        if graph["flavour"] == "ort":
            graph["sha256"] = sha256_of(path)
    (bundle / DESCRIPTION_FILE).write_text(json.dumps(description))
    return bundle


@pytest.mark.parametrize(
    ("options", "corpus", "said"),
    [
        ([], None, "neither .* is a bundle, which would bring texts; add --corpus FILE"),
        ([], "a\na\n", "hold 1 distinct texts; expected 2 or more"),
        (["--min-cosine", "99"], "a\nb\n", "--min-cosine is 99.0; expected a cosine"),
        (["--neighbours", "0"], "a\nb\n", "--neighbours is 0"),
    ],
)
def test_what_cannot_be_run(
    tmp_path: Path, options: list[str], corpus: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if corpus is not None:
        (tmp_path / "corpus").write_text(corpus)
        options = [*options, "--corpus", str(tmp_path / "corpus")]
    assert main(["diff", str(tmp_path), str(tmp_path), *options]) == 2
    assert re.search(said, capsys.readouterr().err)
