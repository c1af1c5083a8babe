"""Engine ``tensorrt``: a plan of a bundle on a GPU, checked against the source's vectors before it serves any."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import Bundle, GraphRecord
from sentport.engines.cuda import Cuda
from sentport.engines.feeds import make_feed
from sentport.engines.fitting import Piece, fit, rows_of
from sentport.engines.tensorrt_check import check_plan, refuse_other_machines, refuse_wrong, was_checked
from sentport.engines.tensorrt_lane import Lane
from sentport.engines.tensorrt_library import load_library, log_of
from sentport.errors import EngineError
from sentport.hardware import cuda_capability
from sentport.plans import BUILDERS, Plan, graph_of, plan_file, read_plans

_LANES = 2  # one computes while the other copies


class TensorRtEngine:
    """Runs one plan of a bundle; see ``Engine`` for the contract.

    The first load on a kind of GPU and version compares layer types and vectors with what they have to be, and writes
    the result into the plan's JSON. A plan that failed is refused from then on.

    Args:
        bundle: Where the plan lies.
        plan: Which plan.

    Raises:
        EngineError: When there is no GPU, it or the library's version is not the plan's, or the plan does not load.
        GateError: When the plan's vectors are not the source's.
    """

    name = "tensorrt"
    sessions, threads = _LANES, 1

    def __init__(self, bundle: Bundle, plan: Plan) -> None:
        trt, cuda = load_library(plan.builder), Cuda()
        refuse_other_machines(bundle, plan, cuda.capability, trt.__version__)
        refuse_wrong(bundle, plan, cuda.name, trt.__version__)
        content = plan_file(bundle, plan).read_bytes()
        self._graph, self._plan = graph_of(bundle, plan), plan
        self.precision, self.layout, self.device = plan.precision, plan.layout, "cuda"
        self.token_budget = plan.token_budget
        log_of(trt).take()
        self._runtime = trt.Runtime(log_of(trt))
        self._runtime.engine_host_code_allowed = plan.newer_versions  # such plans carry the runtime that they need
        engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            reasons = [line for line in log_of(trt).take() if not line.startswith("warning")]
            why = reasons[0] if reasons else "it gives no reason"
            raise EngineError(f"{BUILDERS[plan.builder]} cannot load {bundle.path / plan.file}: {why}")
        self._free: SimpleQueue[Lane | None] = SimpleQueue()
        self._open = 0
        try:
            # Data-dependent shapes, which packed graphs have, make the library wait inside a run: not to be captured.
            captures = plan.builder == "trt" and plan.layout == "padded"
            for _ in range(_LANES):
                self._free.put(Lane(cuda, engine, trt, self._graph, plan.profiles, captures))
                self._open += 1
            if not was_checked(plan, cuda.name, trt.__version__):
                check_plan(bundle, plan, engine, trt, cuda.name, self.run)
        except BaseException:
            self.close()
            raise

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32; rows are padded to the tightest profile's edge, or packed as they are."""
        dim = int(self._graph.outputs[0].axes[-1])
        if not len(batch.lengths):  # a graph takes no empty batch
            return np.zeros((0, dim), np.float32)
        vectors = np.empty((len(batch.lengths), dim), np.float32)
        for piece in fit(self._plan.profiles, self.layout, batch.lengths):
            feed = self._feed(batch, piece)
            lane = self._take()
            try:
                vectors[piece.start : piece.stop] = lane.run(piece.profile, feed, piece.stop - piece.start)
            finally:
                self._free.put(lane)
        return vectors

    def close(self) -> None:
        """Free the device's memory; a second call does nothing."""
        for _ in range(self._open):  # those at work are waited for
            lane = self._take()
            self._open -= 1
            lane.close()
        self._free.put(None)

    def _take(self) -> Lane:
        lane = self._free.get()
        if lane is None:
            self._free.put(None)  # for the next that comes
            raise EngineError("this engine is closed; open a new Encoder")
        return lane

    def _feed(self, batch: TokenBatch, piece: Piece) -> dict[str, NDArray[Any]]:
        """A piece's tables, of layout ``padded`` filled up to the profile's edge, so that few shapes occur."""
        names = [tensor.name for tensor in self._graph.inputs]
        feed = make_feed(self.layout, names, rows_of(batch, piece.start, piece.stop))
        if self.layout == "packed":
            return feed
        edge = self._plan.profiles[piece.profile].tokens.most
        return {name: np.pad(table, ((0, 0), (0, edge - table.shape[1]))) for name, table in feed.items()}


def with_plans(bundle: Bundle) -> Bundle:
    """The bundle with those of its graphs alone that have a plan.

    Raises:
        EngineError: When none has one.
    """
    built = {plan.graph for plan in read_plans(bundle)}
    if not built:
        raise EngineError(
            f"{bundle.path} has no TensorRT plan; `sentport build {bundle.path} --builder trt --corpus FILE` makes them"
        )
    return replace(bundle, graphs=tuple(graph for graph in bundle.graphs if graph.file in built))


def plan_of(bundle: Bundle, graph: GraphRecord) -> Plan:
    """The plan of a graph for this machine's GPU, TensorRT's own before that for RTX; any where none is for it.

    Raises:
        EngineError: When the graph has no plan.
    """
    plans = [plan for plan in read_plans(bundle) if plan.graph == graph.file]
    if not plans:
        raise EngineError(f"{graph.file} has no TensorRT plan; `sentport build {bundle.path} --builder trt` makes one")
    capability = cuda_capability() or (0, 0)  # without a GPU, opening the plan says so
    return min(plans, key=lambda plan: (not plan.runs_on_device(capability), plan.builder != "trt", plan.name))


def resolve_device(device: str) -> str:
    """The device that is meant.

    Raises:
        EngineError: For a device that the engine does not know.
    """
    if device not in ("auto", "cuda"):
        raise EngineError(f"device {device!r} is unknown to engine tensorrt; it knows auto, cuda")
    return "cuda"
