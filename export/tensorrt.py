"""One graph becomes one TensorRT plan: parsed, proven, built for planned profiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.tensorrt_network import Network, parse
from sentport.bundle import Bundle, GraphRecord
from sentport.engines.tensorrt_library import LIBRARIES, load_library, log_of
from sentport.errors import EngineError, GraphError, SentportError
from sentport.files import file_written_aside
from sentport.hardware import cuda_capability
from sentport.plans import LATER, Plan, Profile, write_plan
from sentport.progress import Progress

# Operators of which the output's shape depends on data, and ONNX Runtime's own: no TensorRT takes them.
_REFUSED_OPERATORS = ("NonZero", "Compress", "Unique", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeLinear")
_MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """For what, and with what, a plan is built.

    Attributes:
        builder: ``trt`` or ``rtx``.
        compute_capabilities: Of ``rtx`` alone: devices to build for, as ``8.9``; empty = 8.0 and later.
        other_devices: Of ``trt`` alone: run on every device of compute capability 8.0 and later, at some cost of speed.
        newer_versions: Of ``trt`` alone: load in later versions of the same major one too, at some cost of speed.
        workspace_mib: Scratch memory that a layer may use; None = all there is.
        timing_cache: File of tactics' timings of this machine, read and written; None = none.
    """

    builder: str
    compute_capabilities: tuple[str, ...] = ()
    other_devices: bool = False
    newer_versions: bool = False
    workspace_mib: int | None = None
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        only_for = {
            "--compute-capability": (bool(self.compute_capabilities), "rtx"),
            "--other-devices": (self.other_devices, "trt"),
            "--newer-versions": (self.newer_versions, "trt"),
            "--timing-cache": (self.timing_cache is not None, "trt"),
        }
        for option, (given, builder) in only_for.items():
            if given and builder != self.builder:
                raise SentportError(f"{option} is for --builder {builder}, not {self.builder}")


def check_kind(graph: GraphRecord) -> None:
    """Refuse what no TensorRT parses, by name, before anything is loaded.

    Raises:
        EngineError: For flavour ``ort`` and for operators that the parser lacks.
    """
    if graph.flavour != "portable":
        raise EngineError(
            f"{graph.file} has ONNX Runtime's fused operators, which TensorRT does not parse; it takes flavour "
            "portable: sentport export SOURCE --out BUNDLE --flavour portable"
        )
    held = [name for name in _REFUSED_OPERATORS if graph.operators.get(name)]
    if held:
        raise EngineError(f"{graph.file} has the operators {', '.join(held)}, which TensorRT does not parse")


def check_target(target: Target) -> Any:
    """The library that builds, or the reason why it cannot.

    Raises:
        EngineError: When it is not installed, lacks a device, or there is no GPU where it needs one.
    """
    trt = load_library(target.builder)
    for text in target.compute_capabilities:
        _capability(trt, text)
    if target.builder == "trt" and cuda_capability() is None:
        raise EngineError(
            "builder trt times kernels on a GPU, and no CUDA device was found; build where it is to run, or take "
            "--builder rtx, which needs none"
        )
    return trt


def plan_name(graph: GraphRecord, target: Target) -> str:
    """The plan's name: layout, precision, builder, and the devices where it is for certain ones."""
    devices = target.compute_capabilities
    if target.builder == "trt" and not target.other_devices and (device := cuda_capability()):
        devices = (".".join(map(str, device)),)
    suffix = "".join(f"-sm{text.replace('.', '')}" for text in devices)
    return f"{graph.layout}-{graph.precision}-{target.builder}{suffix}"


def build_plan(
    bundle: Bundle, graph: GraphRecord, profiles: tuple[Profile, ...], target: Target, say: Callable[[str], object]
) -> Plan:
    """Build a plan of a graph and put it, with its JSON, into the bundle's ``engines``.

    Raises:
        EngineError: When the kind of graph, the library or an option is not to be had.
        GraphError: When the graph cannot be parsed or built.
        PrecisionError: When the network's linear layers are not in the record's precision.
    """
    check_kind(graph)
    trt = check_target(target)
    start = time.monotonic()
    log_of(trt).take()
    say(f"parsing {graph.file} with {LIBRARIES[target.builder].title} {trt.__version__}")
    parsed = parse(trt, graph, bundle.graph_file(graph))
    say(f"building {len(profiles)} profiles")
    content = _build(trt, parsed, graph, profiles, target)
    plan = Plan(
        name=plan_name(graph, target),
        graph=graph.file,
        graph_sha256=graph.sha256,
        layout=graph.layout,
        precision=graph.precision,
        sha256="",
        builder=target.builder,
        version=str(trt.__version__),
        runs_on=_runs_on(target),
        newer_versions=target.newer_versions,
        profiles=profiles,
        types=parsed.types,
        seconds=round(time.monotonic() - start, 2),
        log=log_of(trt).take(),
    )
    return write_plan(bundle, plan, content)


def _runs_on(target: Target) -> tuple[str, ...]:
    if target.builder == "rtx":
        # What it builds for unless told otherwise (its documentation, "CPU-Only AOT").
        return target.compute_capabilities or (LATER,)
    device = cuda_capability()
    assert device is not None  # build_plan has asked
    return (LATER,) if target.other_devices else (".".join(map(str, device)),)


def _build(trt: Any, parsed: Network, graph: GraphRecord, profiles: tuple[Profile, ...], target: Target) -> memoryview:
    config = parsed.builder.create_builder_config()
    _set_up(trt, config, target)
    for profile in profiles:
        config.add_optimization_profile(_shapes(parsed, graph, profile))
    cache = _timing_cache(config, target.timing_cache)
    content = _watched(trt, parsed, config, f"building {graph.file}")
    if content is None:
        reasons = [line for line in log_of(trt).take() if line.startswith(("error", "internal"))]
        raise GraphError(f"{graph.file} cannot be built: {reasons[0] if reasons else 'the library gives no reason'}")
    if cache is not None and target.timing_cache is not None:
        with file_written_aside(target.timing_cache) as file:
            file.write_bytes(cache.serialize())
    return memoryview(content)


def _set_up(trt: Any, config: Any, target: Target) -> None:
    config.clear_flag(trt.BuilderFlag.TF32)  # 10 bits of mantissa, on by default, would break the fp32 gate
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layer types, which the first load on a GPU checks
    if target.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, target.workspace_mib * _MIB)
    if target.newer_versions:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if target.other_devices:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if target.compute_capabilities:
        config.num_compute_capabilities = len(target.compute_capabilities)
        for number, text in enumerate(target.compute_capabilities):
            config.set_compute_capability(_capability(trt, text), number)


def _capability(trt: Any, text: str) -> Any:
    members = trt.ComputeCapability.__members__.items()
    known = {f"{name[2:-1]}.{name[-1]}": value for name, value in members if name.startswith("SM")}
    if text not in known:
        listed = ", ".join(known)
        raise EngineError(f"compute capability {text!r} is unknown to version {trt.__version__}; known: {listed}")
    return known[text]


def _shapes(parsed: Network, graph: GraphRecord, profile: Profile) -> Any:
    """A profile as shapes of the graph's inputs, by the names of their axes."""
    found = parsed.builder.create_optimization_profile()
    axes = {"batch": profile.rows, "tokens": profile.tokens, "total_tokens": profile.tokens}
    for tensor in graph.inputs:
        extents = [axes[str(axis)] for axis in tensor.axes]
        found.set_shape(tensor.name, *(tuple(sizes) for sizes in zip(*extents, strict=True)))
    return found


def _timing_cache(config: Any, file: Path | None) -> Any:
    if file is None:
        return None
    cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise EngineError(f"{file} is no timing cache of this version and device; remove it or name another file")
    return cache


def _watched(trt: Any, parsed: Network, config: Any, label: str) -> Any:
    """Build in a thread of its own, so that Ctrl-C reaches this one; the next step of the build then ends it."""
    stopped = threading.Event()
    with Progress(label, None, "steps") as progress, ThreadPoolExecutor(1) as beside:
        config.progress_monitor = _monitor(trt, progress, stopped)
        work = beside.submit(parsed.builder.build_serialized_network, parsed.network, config)
        try:
            return work.result()
        except BaseException:
            stopped.set()
            raise


def _monitor(trt: Any, progress: Progress, stopped: threading.Event) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # a class of the library that was picked
        def __init__(self) -> None:
            super().__init__()
            self._lock = threading.Lock()  # phases are reported from several threads
            self._steps: dict[str, int] = {}
            self._done: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            with self._lock:
                self._steps[phase], self._done[phase] = steps, 0
                progress.expect(sum(self._steps.values()))

        def step_complete(self, phase: str, step: int) -> bool:
            self._advance(phase, step + 1)
            return not stopped.is_set()

        def phase_finish(self, phase: str) -> None:
            self._advance(phase, self._steps.get(phase, 0))

        def _advance(self, phase: str, done: int) -> None:
            with self._lock:
                progress.advance(max(0, done - self._done.get(phase, 0)))
                self._done[phase] = max(done, self._done.get(phase, 0))

    return Monitor()
