"""One of sentport's models. All it does is in sentport's ``triton_repo``; this file speaks to Triton."""

import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from sentport.errors import SentportError
from triton_repo import settings, wire
from triton_repo.metrics import Metrics
from triton_repo.requests import Answer, ModelFailure, TextRequest, Unavailable
from triton_repo.served import open_model
from triton_repo.waiting import Line, Waiting

# A request that waited longer than this is looked after: does anybody still want it?
ASK_AFTER_S = 1.0


class TritonPythonModel:
    """What Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open what lies beside this file."""
        folder = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        try:
            limits = settings.limits(config)
            self._model = open_model(config, folder)
        except SentportError as error:
            # Triton prints a trace for other exceptions; this one is the user's to mend and says how.
            raise pb_utils.TritonModelException(str(error)) from None
        self._metrics = Metrics(pb_utils.MetricFamily, args["model_name"], args["model_version"])
        warm_up = sum(int(sample["batch_size"]) for sample in config.get("model_warmup", ()))  # requests
        self._line = None if limits is None else Line(self._answer, config["max_batch_size"], limits, warm_up)

    def execute(self, requests: list[Any]) -> None:
        """Take the requests of one execution into the line; without one, answer them."""
        taken = [
            Waiting(request.get_response_sender(), _request(request, self._model.takes_parameters), time.monotonic())
            for request in requests
        ]
        if self._line is None:
            self._answer(taken)
            return
        for one in self._line.take(taken):
            _send(one.sender, Unavailable("the model's queue is full; ask again later"))
            self._model.counts.turned_away += 1

    def finalize(self) -> None:
        """Free the engine. Triton gives up a model when all its requests are answered, so that the line is empty."""
        if self._line is not None:
            self._line.close()
        self._model.close()

    def _answer(self, requests: Sequence[Waiting]) -> None:
        began = time.monotonic()
        answers: Sequence[Answer | SentportError]
        try:
            answers = self._model.answer([_too_late(one, began) or one.read for one in requests])
        except Exception as error:  # nobody else would answer them
            pb_utils.Logger.log_error(traceback.format_exc())
            answers = [_failure(error)] * len(requests)
            self._model.counts.served(answers)
        if self._line is not None:  # else Triton counts the time, and nobody counts it twice
            self._model.counts.took([one.came for one in requests], began, time.monotonic())
        for one, answer in zip(requests, answers, strict=True):
            _send(one.sender, answer)
        self._metrics.report(self._model.counts)


def _request(request: Any, with_parameters: bool) -> TextRequest | SentportError:
    try:
        texts = pb_utils.get_input_tensor_by_name(request, wire.TEXT).as_numpy()  # [n, 1] of bytes
        parameters = json.loads(request.parameters()) if with_parameters else {}
        return TextRequest(texts[:, 0].tolist(), parameters, request.timeout())
    except Exception as error:  # whatever it is: raised here, it would fail all requests of this execution
        return SentportError(" ".join(f"the request cannot be read ({type(error).__name__}: {error})".split()))


def _too_late(one: Waiting, now: float) -> Unavailable | None:
    if now >= one.until:
        return Unavailable("the request waited longer than it may")
    # Asking takes a message to the server's process and back.
    if now - one.came > ASK_AFTER_S and one.sender.is_cancelled():
        return Unavailable("nobody waits for the answer")
    return None


def _failure(error: Exception) -> ModelFailure:
    return ModelFailure(" ".join(f"the model failed ({type(error).__name__}: {error})".split()))


def _send(sender: Any, answer: Answer | SentportError) -> None:
    try:
        response = _response(answer)
    except Exception as error:
        pb_utils.Logger.log_error(traceback.format_exc())
        response = _response(_failure(error))
    try:
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except Exception:  # a sender sends once; whom it fails must not keep the others from their answers
        pb_utils.Logger.log_error(traceback.format_exc())


def _response(answer: Answer | SentportError) -> Any:
    if not isinstance(answer, SentportError):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answer.tensors().items()])
    code = pb_utils.TritonError.INVALID_ARG
    if isinstance(answer, Unavailable):
        code = pb_utils.TritonError.UNAVAILABLE
    elif isinstance(answer, ModelFailure):
        code = pb_utils.TritonError.INTERNAL
    told = str(answer).encode("utf-8", "backslashreplace").decode()  # it may quote half a character
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(told, code))
