"""The models of form ``ragged`` without a server, and requests to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime as ort
from google.protobuf import json_format, text_format
from ragged_batches import given_back, merged
from tritonclient.grpc import model_config_pb2

from sentport.encoder import Vectors
from sentport.errors import SentportError
from triton_repo.model_tokens import TokenAnswer, TokenModel
from triton_repo.requests import TextRequest


def parsed(repository: Path, model: str) -> Any:
    text = (repository / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


class Ragged:
    """A repository without a server: the tokenizer step as it is, the graph fed as the onnxruntime backend does."""

    def __init__(self, repository: Path, name: str) -> None:
        config = parsed(repository, f"{name}_tokens")
        as_server = json.loads(json_format.MessageToJson(config, preserving_proto_field_name=True))
        self.tokens = TokenModel.from_config(as_server, repository / f"{name}_tokens" / "1")
        self.inputs = [each.name for each in parsed(repository, f"{name}_graph").input]
        self.session = ort.InferenceSession(str(repository / f"{name}_graph" / "1" / "model.onnx"))

    def answer(self, requests: list[TextRequest]) -> list[Vectors]:
        tensors = [self.step(answer) for answer in self.tokens.answer(requests)]
        (vectors,) = self.session.run(["sentence_embedding"], merged(tensors))
        return given_back(vectors, tensors)

    def step(self, answer: TokenAnswer | SentportError) -> dict[str, Any]:
        assert isinstance(answer, TokenAnswer), answer
        tensors = answer.tensors()
        return {name: tensors[name] for name in self.inputs}


def request(*texts: str, **parameters: Any) -> TextRequest:
    return TextRequest([text.encode() for text in texts], parameters)
