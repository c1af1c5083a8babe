"""Runners of an exported graph: ONNX Runtime and TensorRT, on the tensors of torch and in its streams.

The graphs are a bundle's portable ones of layout padded, copied into the folder by ``prepare --graphs BUNDLE/graphs``.
Both packages may be absent; so may the graph of a model or precision. Each is a reason in the row, never a crash.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.gpu_check.policies import Batch
from bench.gpu_check.runners import Model, pad, to_device
from bench.gpu_check.workload import Corpus

_OUTPUT = "sentence_embedding"
_USUAL_TOKENS = 32  # what tactics are chosen for: short texts, sorted
_TEN = 10  # the first TensorRT whose networks keep the types of their graph


class Absent(Exception):
    """A package or a graph is not there, so the row is not run."""


class _GraphRunner:
    """Rows padded as any other, under the names of the graph's inputs."""

    names: list[str]
    device: torch.device

    def upload(self, corpus: Corpus, batch: Batch) -> dict[str, Tensor]:
        """Pads the rows with id 0; see ``Runner``."""
        ids, lengths = (to_device(table, self.device) for table in pad(corpus, batch))
        columns = torch.arange(ids.shape[1], device=self.device)
        mask = (columns < lengths[:, None]).long()  # [B, L]
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        return {name: given[name] for name in self.names}


class OnnxRuntimeRunner(_GraphRunner):
    """ONNX Runtime with inputs and output bound to torch's memory."""

    def __init__(self, model: Model, precision: str) -> None:
        """Opens a session.

        Raises:
            Absent: The package, its provider for this device, or the graph is not there.
        """
        runtime = package("onnxruntime")
        self.device, on_gpu = model.device, model.device.type == "cuda"
        provider = ("CUDAExecutionProvider", {"use_tf32": "0"}) if on_gpu else "CPUExecutionProvider"
        held = runtime.get_available_providers()
        if on_gpu and "CUDAExecutionProvider" not in held:
            raise Absent(f"onnxruntime {runtime.__version__} has no CUDA provider; pip install onnxruntime-gpu")
        if on_gpu:
            runtime.preload_dlls()
        self._session = runtime.InferenceSession(str(graph_file(model, precision)), providers=[provider])
        if on_gpu and "CUDAExecutionProvider" not in self._session.get_providers():
            raise Absent("onnxruntime's CUDA provider does not load on this machine")
        self.names = [value.name for value in self._session.get_inputs()]
        self._dim = int(self._session.get_outputs()[0].shape[1])
        self._version = str(runtime.__version__)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """See ``Runner``."""
        rows = next(iter(inputs.values())).shape[0]
        found = torch.empty((rows, self._dim), device=self.device)
        binding, place = self._session.io_binding(), (self.device.type, self.device.index or 0)
        for name, tensor in inputs.items():
            binding.bind_input(name, *place, "int64", list(tensor.shape), tensor.data_ptr())
        binding.bind_output(_OUTPUT, *place, "float32", list(found.shape), found.data_ptr())
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()  # its kernels run in a stream of its own
        self._session.run_with_iobinding(binding)
        return found

    def details(self) -> dict[str, Any]:
        """See ``Runner``."""
        return {"attention": "graph of plain operators", "runtime": f"onnxruntime {self._version}"}


class TensorRtRunner(_GraphRunner):
    """A plan built here for all shapes of the corpora, in torch's stream."""

    def __init__(self, model: Model, precision: str, rows: int, tokens: int) -> None:
        """Builds the plan, which takes a minute or more.

        Raises:
            Absent: The package or the graph is not there.
        """
        trt, file = package("tensorrt"), graph_file(model, precision)
        if int(trt.__version__.split(".")[0]) < _TEN:
            raise Absent(f"tensorrt {trt.__version__} is older than {_TEN}, whose networks do not keep their types")
        self.device, self._trt = model.device, trt
        log = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(log)
        flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        network = builder.create_network(0 if flag is None else 1 << int(flag))
        parser = trt.OnnxParser(network, log)
        if not parser.parse_from_file(str(file)):
            raise RuntimeError(f"{file.name} cannot be parsed: {parser.get_error(0).desc()}")
        self.names = [network.get_input(number).name for number in range(network.num_inputs)]
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        config.clear_flag(trt.BuilderFlag.TF32)
        for name in self.names:
            profile.set_shape(name, (1, 1), (rows, min(tokens, _USUAL_TOKENS)), (rows, tokens))
        config.add_optimization_profile(profile)
        self._runtime = trt.Runtime(log)  # has to outlive what it makes
        plan = builder.build_serialized_network(network, config)
        self._engine = None if plan is None else self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise RuntimeError(f"no plan of {file.name} could be built or loaded")
        self._context = self._engine.create_execution_context()
        self._dim = int(self._engine.get_tensor_shape(_OUTPUT)[1])

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """See ``Runner``."""
        found = torch.empty((next(iter(inputs.values())).shape[0], self._dim), device=self.device)
        for name, tensor in inputs.items():
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        self._context.set_tensor_address(_OUTPUT, found.data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("the plan could not be run")
        return found

    def details(self) -> dict[str, Any]:
        """See ``Runner``."""
        return {"attention": "graph of plain operators", "runtime": f"tensorrt {self._trt.__version__}"}


def package(name: str) -> Any:
    """A package that may be absent.

    Raises:
        Absent: It is, or it does not load.
    """
    try:
        return import_module(name)
    except (ImportError, OSError, RuntimeError) as problem:
        raise Absent(f"package {name} is absent: {str(problem).splitlines()[0] if str(problem) else ''}") from problem


def graph_file(model: Model, precision: str) -> Path:
    """The graph of a model in a precision.

    Raises:
        Absent: The folder has none.
    """
    file = None if model.graphs is None else model.graphs / f"padded-{precision}-portable.onnx"
    if file is None or not file.is_file():
        raise Absent(f"the folder has no {precision} graph of this model (prepare --graphs BUNDLE/graphs)")
    return file
