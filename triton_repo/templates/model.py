"""One of sentport's models. All it does is in sentport's ``triton_repo``; this file speaks to Triton."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from sentport.errors import SentportError
from triton_repo import wire
from triton_repo.metrics import Metrics
from triton_repo.requests import Answer, TextRequest
from triton_repo.served import open_model


class TritonPythonModel:
    """What Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open what lies beside this file."""
        folder = Path(args["model_repository"]) / args["model_version"]
        try:
            self._model = open_model(json.loads(args["model_config"]), folder)
        except SentportError as error:
            # Triton prints a trace for other exceptions; this one is the user's to mend and says how.
            raise pb_utils.TritonModelException(str(error)) from None
        self._metrics = Metrics(pb_utils.MetricFamily, args["model_name"], args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests of one execution, in their order."""
        read = [_request(request, self._model.takes_parameters) for request in requests]
        answers: Sequence[Answer | SentportError] = self._model.answer(read)
        self._metrics.report(self._model.counts)
        return [_response(answer) for answer in answers]

    def finalize(self) -> None:
        """Free the engine."""
        self._model.close()


def _request(request: Any, with_parameters: bool) -> TextRequest | SentportError:
    try:
        texts = pb_utils.get_input_tensor_by_name(request, wire.TEXT).as_numpy()  # [n, 1] of bytes
        return TextRequest(texts[:, 0].tolist(), json.loads(request.parameters()) if with_parameters else {})
    except Exception as error:  # whatever it is: raised here, it would fail all requests of this execution
        return SentportError(" ".join(f"the request cannot be read ({type(error).__name__}: {error})".split()))


def _response(answer: Answer | SentportError) -> Any:
    if isinstance(answer, SentportError):
        told = str(answer).encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        error = pb_utils.TritonError(told, pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(output_tensors=[], error=error)
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answer.tensors().items()])
