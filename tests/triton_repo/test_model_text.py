"""The text model without a server: what each request of one execution gets, whatever else is in that execution."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.encoder import Vectors
from sentport.engines.onnxruntime import OnnxRuntimeEngine
from sentport.errors import SentportError
from sentport.inputs import MOST_BYTES
from triton_repo import repository, wire
from triton_repo.model_text import TextAnswer, TextModel
from triton_repo.requests import Fixed, TextRequest
from triton_repo.settings import BUNDLE_FOLDER, FORM
from triton_repo.waiting import Limits, Line

LONG = "the cat sat on a mat " * 30


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Iterator[Encoder]:
    with Encoder(tiny_bundle, "onnxruntime", threads=1, on_truncate="allow") as encoder:
        yield encoder


@pytest.fixture(scope="module")
def model(encoder: Encoder) -> TextModel:
    return TextModel(encoder)


def request(*texts: str | bytes, **parameters: Any) -> TextRequest:
    return TextRequest([text.encode() if isinstance(text, str) else text for text in texts], parameters)


def answered(answer: TextAnswer | SentportError) -> TextAnswer:
    assert isinstance(answer, TextAnswer), answer
    return answer


def refused(answer: TextAnswer | SentportError) -> str:
    assert isinstance(answer, SentportError)
    assert "\n" not in str(answer)
    return str(answer)


def test_every_request_gets_its_own_prompt_dim_and_order(model: TextModel, encoder: Encoder) -> None:
    asked: list[tuple[list[str], str | None, int | None]] = [
        (["the cat", "a dog ran in the park", ""], None, None),
        (["the cat"], "query", None),
        (["the cat", LONG, "the cat"], "passage", 8),
        (["日本 é ß 🙂", "the cat"], "", 24),
    ]
    requests = []
    for texts, prompt, dim in asked:
        given = {"prompt": prompt, "dim": dim}
        requests.append(request(*texts, **{name: value for name, value in given.items() if value is not None}))
    for (texts, prompt, dim), answer in zip(asked, model.answer(requests), strict=True):
        found = answered(answer)
        expected = encoder.encode(texts, prompt=prompt, dim=dim)
        assert found.embedding.shape == (len(texts), dim or encoder.info.dim)
        assert np.abs(found.embedding - expected).max() <= 2e-6
        counts = encoder.tokenize(texts, prompt=prompt)
        assert found.tokens.tolist() == counts.full[:, None].tolist()
        assert found.truncated.tolist() == (counts.full > counts.used)[:, None].tolist()


def test_one_plan_for_all_requests(encoder: Encoder, model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    run = OnnxRuntimeEngine.run

    def counted(self: OnnxRuntimeEngine, batch: TokenBatch, *, beside: bool = False) -> Vectors:
        batches.append(len(batch.lengths))
        return run(self, batch, beside=beside)

    monkeypatch.setattr(OnnxRuntimeEngine, "run", counted)
    # "the cat " is the prompt query: with it, "sat" is the same text as the first.
    model.answer([request("the cat sat"), request("a dog"), request("sat", prompt="query"), request("a dog", dim=3)])
    assert batches == [2]


def test_bad_text_is_refused_alone_and_by_row(model: TextModel) -> None:
    surrogate = "\ud800".encode("utf-8", "surrogatepass")
    good, bad, also_good = model.answer(
        [request("the cat"), request("a", b"\xff\xfe", "b", surrogate, b"x" * (MOST_BYTES + 1)), request("")]
    )
    expected = "3 of 5 texts cannot be encoded: rows 1, 3 (not valid UTF-8), rows 4 (over 1,000,000 bytes)"
    assert refused(bad) == expected
    assert np.isfinite(answered(good).embedding).all()
    assert np.isfinite(answered(also_good).embedding).all()


def test_nothing_good_in_an_execution(model: TextModel) -> None:
    assert [refused(answer) for answer in model.answer([request(b"\xff"), request("a", dim=0)])]
    assert model.answer([]) == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"promt": "query"}, "unknown request parameter promt; known: dim, info, on_truncate, prompt"),
        ({"prompt": "summary"}, "prompt 'summary' is not saved with this model; known: .*passage, query"),
        ({"prompt": 1}, "request parameter prompt is 1; expected the name of a saved prompt"),
        ({"dim": 25}, "dim is 25; expected a whole number from 1 to 24"),
        ({"dim": True}, "dim is True"),
        ({"dim": "8"}, "dim is '8'"),
        ({"dim": 8.0}, "dim is 8.0"),
        ({"on_truncate": "warn"}, "request parameter on_truncate is 'warn'; expected one of allow, error"),
        ({"on_truncate": ["allow"]}, "request parameter on_truncate is"),
        ({"info": 1}, "request parameter info is 1; expected true or false"),
    ],
)
def test_wrong_parameter(model: TextModel, parameters: dict[str, Any], message: str) -> None:
    wrong, good = model.answer([request("the cat", **parameters), request("the cat")])
    assert re.match(message, refused(wrong))
    answered(good)


def test_truncation_policy_is_the_requests_own(model: TextModel, encoder: Encoder) -> None:
    strict, free, short = model.answer(
        [request("a", LONG, on_truncate="error"), request("a", LONG), request("a", on_truncate="error")]
    )
    length = encoder.tokenize([LONG]).full[0]
    said = f"1 of 2 texts is longer than 48 tokens (longest {length}) and loses its end: rows 1 (lengths {length});"
    assert refused(strict).startswith(said)
    assert answered(free).truncated.tolist() == [[False], [True]]
    assert answered(short).truncated.tolist() == [[False]]


def test_info_is_told_on_demand(model: TextModel, encoder: Encoder) -> None:
    told, silent = model.answer([request("a", info=True), request("a")])
    assert json.loads(answered(told).tensors()[wire.INFO][0, 0]) == asdict(encoder.info)
    assert set(answered(silent).tensors()) == {wire.EMBEDDING, wire.TOKENS, wire.TRUNCATED}


def test_fixed_model_takes_no_notice_of_parameters(encoder: Encoder) -> None:
    model = TextModel(encoder, Fixed(prompt="query", dim=5, on_truncate="error"))
    good, asking, long = model.answer([request("sat"), request("sat", dim=9, x=1), request(LONG)])
    assert np.abs(answered(good).embedding - encoder.encode(["sat"], prompt="query", dim=5)).max() <= 2e-6
    assert np.array_equal(answered(asking).embedding, answered(good).embedding)
    assert "longer than 48 tokens" in refused(long)


class Wire:
    """A request as Triton hands it over, whose parameters cannot be read where ``parameters`` is an error."""

    def __init__(self, parameters: str | Exception) -> None:
        self._parameters = parameters

    def as_numpy(self) -> Any:
        return np.array([[b"sat"]], dtype=object)

    def parameters(self) -> str:
        if isinstance(self._parameters, Exception):
            raise self._parameters
        return self._parameters

    def timeout(self) -> int:
        return 0


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The server's model.py beside a stand-in for the one module that only Triton has."""
    triton = SimpleNamespace(get_input_tensor_by_name=lambda request, name: request)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    file = Path(repository.__file__).with_name("templates") / "model.py"
    spec = spec_from_file_location("served_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_request_that_cannot_be_read_is_refused_alone(template: ModuleType, model: TextModel, encoder: Encoder) -> None:
    wires = [Wire('{"dim": 3}'), Wire(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad\nbyte")), Wire("{")]
    good, bad, garbled = model.answer([template._request(one, True) for one in wires])
    assert answered(good).embedding.shape == (1, 3)
    assert refused(bad).startswith("the request cannot be read (UnicodeDecodeError:")
    assert refused(garbled).startswith("the request cannot be read (JSONDecodeError:")
    fixed = TextModel(encoder, Fixed())
    (ignored,) = fixed.answer([template._request(wires[1], fixed.takes_parameters)])
    assert answered(ignored).embedding.shape == (1, 24)


class FromTriton(Wire):
    """A request with somebody who waits for its answers."""

    def __init__(self) -> None:
        super().__init__("{}")
        self.answers: list[Any] = []

    def get_response_sender(self) -> Any:
        return SimpleNamespace(
            send=lambda answer, flags: self.answers.append((answer, flags)), is_cancelled=lambda: False
        )


def test_every_request_is_answered_once_whatever_happens(
    template: ModuleType, model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vector, a fault of ours, and a full queue: the only three ends, each told with its code."""
    triton = template.pb_utils
    triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL = "final"
    triton.Tensor = lambda name, value: (name, value)
    triton.InferenceResponse = lambda output_tensors, error=None: error or dict(output_tensors)
    triton.TritonError = type("TritonError", (), {"UNAVAILABLE": 1, "INTERNAL": 2, "INVALID_ARG": 3})
    monkeypatch.setattr(
        triton.TritonError, "__init__", lambda self, told, code: vars(self).update(told=told, code=code)
    )
    logged: list[str] = []
    triton.Logger = SimpleNamespace(log_error=logged.append)
    served = template.TritonPythonModel()
    served._model, served._metrics = model, SimpleNamespace(report=lambda counts: None)
    served._line = Line(served._answer, 8, Limits(2, 30.0))
    before = replace(model.counts)
    requests = [FromTriton() for _ in range(3)]
    served.execute(requests)  # three at once find room for two
    served._line.close()
    assert [[flags for _, flags in one.answers] for one in requests] == [["final"]] * 3
    (first, second, third) = [one.answers[0][0] for one in requests]
    assert first["EMBEDDING"].shape == second["EMBEDDING"].shape == (1, 24)
    assert (third.code, third.told) == (1, "the model's queue is full; ask again later")
    assert (model.counts.turned_away - before.turned_away, model.counts.requests - before.requests) == (1, 2)

    def fails(requests: Any) -> Any:
        raise ZeroDivisionError("by\nzero")

    served._line = None
    for answer in (fails, lambda requests: [SimpleNamespace(tensors=lambda: fails(None))]):
        monkeypatch.setattr(model, "answer", answer)
        failed = FromTriton()
        served.execute([failed])
        ((error, _),) = failed.answers
        assert (error.code, error.told) == (2, "the model failed (ZeroDivisionError: by zero)")
        assert "ZeroDivisionError" in logged.pop()


def config(encoder: Encoder, changes: dict[str, str]) -> dict[str, Any]:
    values = {FORM: "text", "device": "cpu", "layout": "padded", "precision": "fp32", "threads": "1"}
    values[wire.ENCODER] = json.dumps({"fingerprint": encoder.info.fingerprint})
    return {"parameters": {name: {"string_value": value} for name, value in (values | changes).items()}}


def test_opened_from_a_config(tiny_bundle: Path, tmp_path: Path, encoder: Encoder) -> None:
    (tmp_path / BUNDLE_FOLDER).symlink_to(tiny_bundle)
    changes = {"fixed_on_truncate": "allow", "fixed_dim": "3", "fixed_prompt": ""}
    model = TextModel.from_config(config(encoder, changes), tmp_path)
    (answer,) = model.answer([request("sat")])
    model.close()
    assert np.abs(answered(answer).embedding - encoder.encode(["sat"], prompt="", dim=3)).max() <= 2e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": "two"}, "parameter threads of config.pbtxt is 'two'; expected a whole number from 1"),
        ({"device": "cuda"}, "device cuda was asked for"),
        ({"engine": "torch"}, "parameter engine of config.pbtxt is 'torch'; expected one of onnxruntime, native"),
        ({"precision": "fp16"}, "has no graph with layout padded in fp16"),
        ({wire.ENCODER: '{"fingerprint": "0"}'}, "config.pbtxt describes another model"),
    ],
)
def test_config_that_cannot_be_had(
    tiny_bundle: Path, tmp_path: Path, encoder: Encoder, changes: dict[str, str], message: str
) -> None:
    (tmp_path / BUNDLE_FOLDER).symlink_to(tiny_bundle)
    with pytest.raises(SentportError, match=message):
        TextModel.from_config(config(encoder, changes), tmp_path)
