"""``sentport doctor``: what this machine can run, what is missing, what each absence costs and what mends it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Literal

from sentport import __version__, hardware

DESCRIPTION = """\
Say what this machine can run: wheels, devices, cores, and where ONNX Runtime really executes a node.
Exit code 1 only when no text could be encoded here; anything else that is missing is optional."""
EXAMPLE = "sentport doctor --json"

_OLDEST_PYTHON = (3, 11)

# All of these unpack into the one folder onnxruntime/. The CUDA build comes first: it is the one kept in a clash.
_ONNXRUNTIME_WHEELS = (
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime",
)
_CPU_PROVIDER = "CPUExecutionProvider"
# Providers that need a CUDA device, and their own libraries in onnxruntime/capi.
_CUDA_PROVIDERS = {
    "CUDAExecutionProvider": "libonnxruntime_providers_cuda.so",
    "TensorrtExecutionProvider": "libonnxruntime_providers_tensorrt.so",
    "NvTensorRTRTXExecutionProvider": "libonnxruntime_providers_nv_tensorrt_rtx.so",
}
# Forwards whole models to a remote service and never runs a node of ours: there is nothing to probe.
_REMOTE_PROVIDERS = frozenset({"AzureExecutionProvider"})

_FEATURE_COSTS = {
    "AVX2": "matrix products run on 128-bit registers, several times slower",
    "AVX512F": "matrix products run on 256-bit registers, at up to half the rate",
    "AVX512-VNNI": "int8 products take more steps and may saturate, unless AVX-VNNI is there: verify int8 here",
    "AVX-VNNI": "int8 products take more steps and may saturate, unless AVX512-VNNI is there",
    "AVX512-BF16": "bf16 is no faster than fp32, unless AMX-BF16 is there",
    "AMX-INT8": "int8 products run on vector registers, at a fraction of the rate of tiles",
    "AMX-BF16": "bf16 products run on vector registers, if at all, at a fraction of the rate of tiles",
}

# y = x + x over float[1], as an ONNX file written out by hand: IR 8, opset 13. Each line is one protobuf field.
_PROBE_MODEL = bytes.fromhex(
    "08 08"  # ir_version = 8
    "3a 40"  # graph, 64 bytes:
    "0a 15 0a 01 78 0a 01 78 12 01 79 1a 05 70 72 6f 62 65 22 03 41 64 64"  # node "probe": Add, x, x -> y
    "12 05 70 72 6f 62 65"  # graph name "probe"
    "5a 0f 0a 01 78 12 0a 0a 08 08 01 12 04 0a 02 08 01"  # input x: float[1]
    "62 0f 0a 01 79 12 0a 0a 08 08 01 12 04 0a 02 08 01"  # output y: float[1]
    "42 04 0a 00 10 0d"  # opset_import: default domain, 13
)

_SILENT, _WARNING = 4, 2  # ONNX Runtime's log severities: fatal only, and its default


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        status: ``ok``; ``missing``: not there, and that may be fine; ``problem``: there, but it does not work.
        detail: What was found.
        cost: What cannot be done, or is slower, because of it.
        fix: The command, or the deed, that mends it; empty when nothing does.
    """

    name: str
    status: Literal["ok", "missing", "problem"]
    detail: str
    cost: str = ""
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``sentport doctor``."""
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 when texts can be encoded here, else 1."""
    findings = examine()
    encodes = can_encode(findings)
    if arguments.json:
        print(json.dumps({"can_encode": encodes, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        shown = [finding for finding in findings if finding.status == "problem" or not arguments.quiet]
        print("\n".join([*_report(shown), _verdict(findings)]))
    return 0 if encodes else 1


def examine() -> list[Finding]:
    """Look at everything; nothing is installed, and only a temporary folder is written and removed."""
    driver = hardware.cuda_driver()
    return [
        _python(),
        Finding("sentport", "ok", __version__),
        _core_wheel("numpy"),
        _core_wheel("tokenizers"),
        _onnxruntime_wheels(),
        *_providers(driver),
        _cuda_device(driver),
        *_cuda_libraries(driver),
        _export_wheel("torch"),
        _export_wheel("transformers"),
        _cores(),
        Finding("CPU", "ok", hardware.cpu_model()),
        *_cpu_features(),
        _triton_server(),
        *_tensorrt(),
        _openvino(),
        _native(),
    ]


def can_encode(findings: Sequence[Finding]) -> bool:
    """Whether some engine can turn texts into vectors: ONNX Runtime on the CPU, or torch with transformers."""
    sound = _sound(findings)
    return {"Python", "numpy", "tokenizers"} <= sound and (_CPU_PROVIDER in sound or {"torch", "transformers"} <= sound)


def _sound(findings: Sequence[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.status == "ok"}


def _report(findings: Sequence[Finding]) -> list[str]:
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<7}  {finding.name:<{width}}  {finding.detail}")
        lines += [f"{'':9}{label} {text}" for label, text in (("cost:", finding.cost), ("fix: ", finding.fix)) if text]
    return lines


def _verdict(findings: Sequence[Finding]) -> str:
    sound = _sound(findings)
    if can_encode(findings):
        ways = [f"onnxruntime on {name}" for name in sorted(sound) if name.endswith("ExecutionProvider")]
        ways += ["torch, from a checkpoint"] if {"torch", "transformers"} <= sound else []
        return f"encoding can run here: {'; '.join(ways)}"
    lacking = [name for name in ("Python", "numpy", "tokenizers") if name not in sound]
    if _CPU_PROVIDER not in sound and not {"torch", "transformers"} <= sound:
        lacking.append("an engine (onnxruntime, or torch with transformers)")
    return f"encoding cannot run here: no usable {', '.join(lacking)}"


def _python() -> Finding:
    system = f"{platform.system()} {platform.machine()}"
    detail = f"{platform.python_version()} ({platform.python_implementation()}, {system})"
    if tuple(sys.version_info[:2]) >= _OLDEST_PYTHON:
        return Finding("Python", "ok", detail)
    needed = ".".join(str(part) for part in _OLDEST_PYTHON)
    return Finding("Python", "problem", detail, "sentport cannot run", f"install Python {needed} or newer")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _core_wheel(name: str) -> Finding:
    cost, fix = "encoding cannot run", f"pip install --force-reinstall {name}"
    version = _version(name)
    if version is None:
        return Finding(name, "missing", "not installed", cost, f"pip install {name}")
    try:
        import_module(name)
    except Exception as error:  # a binary built for another Python or numpy fails with whatever it likes
        return Finding(name, "problem", f"{version}, but importing it fails: {_first_line(error)}", cost, fix)
    return Finding(name, "ok", version)


def _export_wheel(name: str) -> Finding:
    version = _version(name)
    if version is None:
        cost = "checkpoints can be neither exported nor run by engine torch; bundles do not need it"
        return Finding(name, "missing", "not installed", cost, "pip install 'sentport[export]'")
    return Finding(name, "ok", version)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _onnxruntime_wheels() -> Finding:
    name = "onnxruntime wheel"
    versions = {wheel: _version(wheel) for wheel in _ONNXRUNTIME_WHEELS}
    installed = [wheel for wheel, version in versions.items() if version is not None]
    detail = ", ".join(f"{wheel} {versions[wheel]}" for wheel in installed)
    if not installed:
        return Finding(
            name,
            "missing",
            "not installed",
            "bundles cannot be encoded",
            "pip install 'sentport[gpu]' (Linux x86-64, runs on CPU too) or pip install 'sentport[cpu]'",
        )
    if len(installed) > 1:
        return Finding(
            name,
            "problem",
            f"{detail}: they overwrite each other's files",
            "the one installed last decides, so CUDA may be lost without a word",
            # Taking one away removes files of the other, so the one that stays is installed anew.
            f"pip uninstall -y {' '.join(installed)} && pip install {installed[0]}",
        )
    return Finding(name, "ok", detail)


def _providers(driver: hardware.CudaDriver) -> list[Finding]:
    if find_spec("onnxruntime") is None:
        return []
    try:
        runtime = import_module("onnxruntime")
        providers: list[str] = runtime.get_available_providers()
    except Exception as error:  # files left over from a clash fail in many ways, a bare AttributeError among them
        detail = f"importing it fails: {_first_line(error)}"
        fix = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'sentport[gpu]'"
        return [Finding("onnxruntime", "problem", detail, "bundles cannot be encoded", fix)]
    # Sessions have a severity of their own; this one silences what is logged before and outside of them.
    runtime.set_default_logger_severity(_SILENT)
    try:
        if driver.devices and hasattr(runtime, "preload_dlls"):
            with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find; that is ours to say
                runtime.preload_dlls()
        return [_probe(runtime, name, driver) for name in providers if name not in _REMOTE_PROVIDERS]
    finally:
        runtime.set_default_logger_severity(_WARNING)


def _probe(runtime: ModuleType, provider: str, driver: hardware.CudaDriver) -> Finding:
    cost = "onnxruntime encodes nothing" if provider == _CPU_PROVIDER else "onnxruntime works without it, on the CPU"
    if provider in _CUDA_PROVIDERS:
        if driver.devices == ():
            return Finding(provider, "missing", "not tried: there is no CUDA device", cost)
        if missing := _missing_of(_CUDA_PROVIDERS[provider]):
            detail = f"not tried: its library lacks {', '.join(missing)}"
            return Finding(provider, "missing", detail, cost, _library_fix(missing))
    try:
        executed = _node_providers(runtime, provider)
    except Exception as error:  # onnxruntime raises bare exceptions of its own
        return Finding(provider, "problem", f"cannot run a node: {_first_line(error)}", cost)
    if provider in executed:
        return Finding(provider, "ok", "ran a probe node")
    ran = ", ".join(sorted(executed)) or "no provider"
    return Finding(provider, "problem", f"is offered, but {ran} ran the probe node", cost)


def _node_providers(runtime: ModuleType, provider: str) -> set[str]:
    """The providers that really ran the probe's node, from ONNX Runtime's own profile of the run."""
    import numpy as np

    options = runtime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="sentport-doctor-", ignore_cleanup_errors=True) as folder:
        options.profile_file_prefix = str(Path(folder) / "probe")
        # With its fallback on, a provider that fails prints a banner on stdout and the CPU takes over.
        session = runtime.InferenceSession(_PROBE_MODEL, options, providers=[provider], enable_fallback=0)
        try:
            session.run(None, {"x": np.ones(1, np.float32)})
        finally:
            profile = Path(session.end_profiling())
        events = json.loads(profile.read_text(encoding="utf-8"))
    nodes = [event["args"] for event in events if event.get("cat") == "Node" and "provider" in event.get("args", {})]
    # A copy between devices runs on the GPU even when the work itself does not.
    return {node["provider"] for node in nodes if not node.get("op_name", "").startswith("Memcpy")}


def _cuda_device(driver: hardware.CudaDriver) -> Finding:
    name = "CUDA device"
    if driver.devices:
        version = f"; driver for CUDA up to {_dotted(driver.version)}" if driver.version else ""
        return Finding(name, "ok", ", ".join(driver.devices) + version)
    # A driver that is there but does not start is a fault; no driver at all is a machine without a GPU.
    status: Literal["missing", "problem"] = "problem" if driver.version else "missing"
    fix = "run on a machine with an NVIDIA GPU and its driver (in a container: docker run --gpus all)"
    return Finding(name, status, driver.reason, "encoding runs on the CPU; no TensorRT", fix)


def _cuda_libraries(driver: hardware.CudaDriver) -> list[Finding]:
    name, cost = "CUDA libraries", "CUDAExecutionProvider cannot start"
    if find_spec("onnxruntime") is None:
        return []
    if sys.platform != "linux":
        return [Finding(name, "missing", f"{hardware.UNKNOWN}: looked for on Linux only")]
    library = _provider_library(_CUDA_PROVIDERS["CUDAExecutionProvider"])
    if library is None:
        fix = "pip uninstall -y onnxruntime && pip install 'sentport[gpu]'"
        return [Finding(name, "missing", "this onnxruntime is built without CUDA", cost, fix)]
    try:
        needed, _ = hardware.needed_libraries(library)
    except (OSError, ValueError) as error:
        fix = "pip install --force-reinstall onnxruntime-gpu"
        return [Finding(name, "problem", _first_line(error), cost, fix)]
    if missing := _missing_of(library.name):
        # Without a device nobody needs them: missing, but no fault.
        status: Literal["missing", "problem"] = "problem" if driver.devices else "missing"
        return [Finding(name, status, f"not found: {', '.join(missing)}", cost, _library_fix(missing))]
    return [_cuda_major(driver, needed)]


def _provider_library(name: str) -> Path | None:
    spec = find_spec("onnxruntime")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        library = Path(package) / "capi" / name
        if library.is_file():
            return library
    return None


def _missing_of(name: str) -> list[str]:
    """Libraries that one of onnxruntime's own needs and that are found neither by the loader nor in NVIDIA's wheels."""
    library = _provider_library(name)
    if library is None or sys.platform != "linux":
        return []
    # onnxruntime.preload_dlls loads from these folders: site-packages/nvidia/*/lib, beside site-packages/onnxruntime.
    wheels = sorted((library.parents[2] / "nvidia").glob("*/lib"))
    try:
        return hardware.missing_libraries(library, wheels)
    except (OSError, ValueError):  # a damaged file: reported where the CUDA libraries are
        return []


def _library_fix(missing: Sequence[str]) -> str:
    tensorrt = [name for name in missing if name.startswith(("libnvinfer", "libnvonnxparser", "libtensorrt"))]
    fixes = ["install the NVIDIA driver"] if "libcuda.so.1" in missing else []
    if set(missing) - {"libcuda.so.1", *tensorrt}:
        fixes.append("pip install 'onnxruntime-gpu[cuda,cudnn]'")
    if tensorrt:
        fixes.append("pip install 'sentport[tensorrt]' and put its tensorrt_libs folder on LD_LIBRARY_PATH")
    return "; ".join(fixes)


def _cuda_major(driver: hardware.CudaDriver, needed: Sequence[str]) -> Finding:
    """All libraries are found: check that the driver is new enough for the CUDA version that they belong to."""
    name = "CUDA libraries"
    match = re.search(r"libcudart\.so\.(\d+)", " ".join(needed))
    if match and driver.version and driver.version[0] < int(match[1]):
        return Finding(
            name,
            "problem",
            f"this onnxruntime needs CUDA {match[1]}, the driver runs up to {_dotted(driver.version)}",
            "CUDAExecutionProvider cannot start",
            f"update the NVIDIA driver, or install an onnxruntime-gpu built for CUDA {driver.version[0]}",
        )
    return Finding(name, "ok", "all that onnxruntime's CUDA provider is linked to are found")


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _cores() -> Finding:
    quota = hardware.cgroup_quota()
    limit = f"{quota:g}" if quota is not None else "none" if sys.platform == "linux" else hardware.UNKNOWN
    detail = (
        f"{hardware.available_cores()} usable of {os.cpu_count() or hardware.UNKNOWN} in the machine "
        f"(affinity {hardware.affinity_cores()}, cgroup quota {limit})"
    )
    if quota is not None and quota < 1:
        fix = "raise the container's CPU limit to 1 or more"
        return Finding("cores", "problem", detail, "even one thread is throttled", fix)
    return Finding("cores", "ok", detail)


def _cpu_features() -> list[Finding]:
    present = hardware.cpu_features()
    if present is None:
        return [Finding("CPU features", "missing", f"{hardware.UNKNOWN}: read from x86 Linux only")]
    return [
        Finding(name, "ok", "yes") if name in present else Finding(name, "missing", "no", _FEATURE_COSTS[name])
        for name in hardware.CPU_FEATURES
    ]


def _triton_server() -> Finding:
    binary, wheel = shutil.which("tritonserver"), _version("nvidia-pytriton")
    if binary or wheel:
        return Finding("Triton server", "ok", f"tritonserver at {binary}" if binary else f"nvidia-pytriton {wheel}")
    cost = "none can be started by hand; `sentport serve` makes its own environment once (about 350 MB)"
    fix = "sentport serve BUNDLE, or NVIDIA's Triton container"
    return Finding("Triton server", "missing", "no tritonserver on PATH, no nvidia-pytriton", cost, fix)


def _tensorrt() -> list[Finding]:
    cost = "no plan can be built or run, and TensorrtExecutionProvider cannot start"
    cost_rtx = "no TensorRT-RTX plan can be built or run"
    fix_rtx = "pip install tensorrt-rtx-cu12-bindings tensorrt-rtx-cu12-libs"
    return [
        _module("TensorRT", "tensorrt", "tensorrt", cost, "pip install 'sentport[tensorrt]'"),
        _module("TensorRT-RTX", "tensorrt_rtx_bindings", "tensorrt-rtx-cu12-bindings", cost_rtx, fix_rtx),
    ]


def _openvino() -> Finding:
    cost = "engine openvino cannot be asked for; bundles run on onnxruntime"
    found = _module("OpenVINO", "openvino", "openvino", cost, "pip install 'sentport[openvino]'")
    if found.status != "ok":
        return found
    try:
        held = import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    except Exception as error:  # a binary built for another machine fails with whatever it likes
        detail = f"{found.detail}, but its CPU device does not start: {_first_line(error)}"
        return Finding("OpenVINO", "problem", detail, cost, "pip install --force-reinstall openvino")
    types = [name for name in ("FP32", "BF16", "FP16", "INT8") if name in held]
    return Finding("OpenVINO", "ok", f"{found.detail}; on this CPU {', '.join(types)}")


def _native() -> Finding:
    cost = "on a CPU bundles run on onnxruntime, at some 0.8 of the speed in fp32 and 0.5 in int8 (AVX2)"
    fix = "pip install 'sentport[native]', or `make native` in the repository (x86-64 and a C++ compiler)"
    found = _module("Native engine", "sentport_native", "sentport-native", cost, fix)
    if found.status != "ok":
        return found
    try:
        levels = import_module("sentport_native").levels()
    except Exception as error:  # a binary built for another machine fails with whatever it likes
        detail = f"{found.detail}, but importing it fails: {_first_line(error)}"
        return Finding(found.name, "problem", detail, cost, fix)
    if not levels:
        return Finding(found.name, "problem", f"{found.detail}, but this CPU has no AVX2", cost)
    lacking = "" if levels[-1] == "avx512-bf16" else "; bf16 needs AVX512-BF16"
    return Finding(found.name, "ok", f"{found.detail}; kernels for {', '.join(levels)}{lacking}")


def _module(name: str, module: str, distribution: str, cost: str, fix: str) -> Finding:
    spec = find_spec(module)
    if spec is None or spec.origin is None:  # a folder without __init__.py is somebody else's
        return Finding(name, "missing", "not installed", cost, fix)
    return Finding(name, "ok", f"{module} {_version(distribution) or hardware.UNKNOWN}")
