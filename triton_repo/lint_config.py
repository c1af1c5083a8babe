"""Rules on any model's ``config.pbtxt`` and the files beside it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from difflib import get_close_matches
from math import prod
from typing import Any

from triton_repo import settings
from triton_repo.lint import Model, Problem
from triton_repo.transport import load_library

_FILES = {"python": "model.py", "onnxruntime": "model.onnx", "tensorrt": "model.plan"}
_BYTES = {
    **dict.fromkeys(("TYPE_BOOL", "TYPE_UINT8", "TYPE_INT8"), 1),
    **dict.fromkeys(("TYPE_UINT16", "TYPE_INT16", "TYPE_FP16", "TYPE_BF16"), 2),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_INT32", "TYPE_FP32"), 4),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_INT64", "TYPE_FP64"), 8),
}
# Those that a misspelt name is compared with; a backend of one's own has any other.
_BACKENDS = (*_FILES, "pytorch", "tensorflow", "tensorrtllm", "openvino", "vllm", "dali", "fil")
_PLATFORMS = ("ensemble", "onnxruntime_onnx", "tensorrt_plan", "pytorch_libtorch", "tensorflow_savedmodel")
# From which the server tells the backend where the config does not.
_DEFAULT_FILES = (*_FILES.values(), "model.pt", "model.graphdef", "model.savedmodel")
_WHOLE = re.compile("[0-9]{1,9}")
# Every parameter that the onnxruntime backend reads.
_ONNXRUNTIME_NUMBERS = ("intra_op_thread_count", "inter_op_thread_count", "execution_mode")
_ONNXRUNTIME = frozenset(
    {
        *_ONNXRUNTIME_NUMBERS,
        *("enable_mem_arena", "enable_mem_pattern", "memory.enable_memory_arena_shrinkage"),
        *("session.use_device_allocator_for_initializers", "share_session_between_instances"),
        *("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream"),
        settings.PART_OF,
    }
)
# Those of the python backend itself.
_PYTHON = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "shm-default-byte-size"})


def type_name(value: int) -> str:
    """Name of a data type's number."""
    return enum_name(load_library("grpc.model_config_pb2").DataType, value)


def enum_name(kind: Any, value: int) -> str:
    """Name of a value of a protobuf enumeration; the number itself where it has none, which protobuf takes as well."""
    return str(kind.Name(value)) if value in kind.values() else str(value)


def name(model: Model) -> Iterator[Problem]:
    """The name is the folder's."""
    found = model.config.name
    if found and found != model.folder.name:
        yield Problem("name", f"is {found!r}, but the folder is {model.folder.name!r}", "make both the same")


def version(model: Model) -> Iterator[Problem]:
    """There is a version to serve."""
    if not model.versions:
        yield Problem("version_policy", "there is no version folder", "put the model's files into a folder `1`")
    missing = set(model.config.version_policy.specific.versions) - {int(path.name) for path in model.versions}
    for number in sorted(missing):
        yield Problem("version_policy.specific", f"version {number} is not there", "add it, or take it out of the list")


def model_file(model: Model) -> Iterator[Problem]:
    """Each served version has its file."""
    file = model.config.default_model_filename or _FILES.get(model.backend)
    for folder in model.served:
        if file and not (folder / file).exists():
            yield Problem("default_model_filename", f"{folder.name}/{file} is not there", "add the file")


def backend(model: Model) -> Iterator[Problem]:
    """Something says which backend runs the model, and says it right."""
    field = "platform" if model.config.platform and not model.config.backend else "backend"
    found = getattr(model.config, field)
    alike = get_close_matches(found, _BACKENDS if field == "backend" else _PLATFORMS, 1, 0.7)
    if alike and alike[0] != found:
        yield Problem(field, f"is {found!r}, which looks like {alike[0]!r}", f"make it {alike[0]!r}")
    told = [file for folder in model.served for file in _DEFAULT_FILES if (folder / file).exists()]
    if not model.backend and not told and not model.config.default_model_filename:
        yield Problem("backend", "is not there, and no file tells it", f"give one, as {', '.join(_FILES)}")


def max_batch(model: Model) -> Iterator[Problem]:
    """The limit of a batch is no negative number."""
    if model.config.max_batch_size < 0:
        yield Problem("max_batch_size", f"is {model.config.max_batch_size}", "give one from 1, or 0 for no batches")


def tensor(model: Model) -> Iterator[Problem]:
    """Inputs and outputs have a name, a type and dims; other backends can take them from the model's file."""
    if model.backend not in ("python", "ensemble"):
        return
    for side in ("input", "output"):
        for number, each in enumerate(getattr(model.config, side)):
            given = {"name": each.name, "data_type": each.data_type, "dims": each.dims}
            for missing in (part for part, value in given.items() if not value):
                yield Problem(f"{side}[{number}].{missing}", "is not there", "add it")


def tensor_dims(model: Model) -> Iterator[Problem]:
    """Sizes are positive, or -1 for any."""
    for side in ("input", "output"):
        for each in getattr(model.config, side):
            wrong = [size for size in each.dims if size < 1 and size != -1]
            if wrong:
                yield Problem(f"{side}.{each.name}.dims", f"has {wrong[0]}", "give a size from 1, or -1 for any size")


def optional_input(model: Model) -> Iterator[Problem]:
    """Batched models of these backends have no optional inputs; the python backend takes them."""
    for each in model.config.input:
        if each.optional and model.config.max_batch_size > 0 and model.backend in ("onnxruntime", "tensorrt"):
            yield Problem(
                f"input.{each.name}.optional", "is true beside max_batch_size > 0", "send it always, or do not batch"
            )


def preferred_batch(model: Model) -> Iterator[Problem]:
    """Preferred batch sizes are within the limit."""
    most = model.config.max_batch_size
    for size in model.config.dynamic_batching.preferred_batch_size:
        if not 0 < size <= most:
            yield Problem("dynamic_batching.preferred_batch_size", f"{size} is not from 1 to {most}", "take it out")


def priority(model: Model) -> Iterator[Problem]:
    """Levels of priority that exist."""
    batching = model.config.dynamic_batching
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 1 <= default <= levels:
        field = "dynamic_batching.default_priority_level"
        yield Problem(field, f"is {default}, with {levels} levels", f"give one from 1 to {levels}")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            field = "dynamic_batching.priority_queue_policy"
            yield Problem(field, f"has level {level} of {levels}", "take it out, or raise priority_levels")


def instance_kind(model: Model) -> Iterator[Problem]:
    """GPU instances where there is a GPU, and only for models that use one."""
    device = model.parameters.get("device", "cuda")
    for group in model.config.instance_group:
        if group.kind not in group.Kind.values():
            yield Problem("instance_group.kind", f"is {group.kind}", f"known: {', '.join(group.Kind.keys())}")
        if group.kind != group.KIND_GPU:
            continue
        if model.target.gpu is False:
            yield Problem("instance_group.kind", "is KIND_GPU, and there is no GPU", "make it KIND_CPU")
        elif device == "cpu":
            yield Problem("instance_group.kind", "is KIND_GPU, but parameter device is cpu", "make it KIND_CPU")


def instance_count(model: Model) -> Iterator[Problem]:
    """The number of instances is said: the default of this backend on a CPU is two, each with its own weights."""
    if model.backend == "onnxruntime" and not model.config.instance_group:
        yield Problem("instance_group", "is not there: the default is two CPU instances", "say kind and count")


def cache(model: Model) -> Iterator[Problem]:
    """A cached model gives one answer for its inputs: the cache's key has no parameters and no outputs."""
    if not model.config.response_cache.enable:
        return
    if len(model.config.output) > 1:
        yield Problem(
            "response_cache.enable",
            f"is true with {len(model.config.output)} outputs; who asks for all gets those of who asked first",
            "switch it off, or leave one output",
        )
    fixed = "fixed_on_truncate" in model.parameters
    if not fixed and any(_reads_parameters(each) for each in _behind(model)):
        yield Problem(
            "response_cache.enable",
            "is true, and answers depend on request parameters, which the cache does not look at",
            "switch it off, or write the repository with `sentport repository --cache`",
        )


def _behind(model: Model) -> list[Model]:
    steps = [step.model_name for step in model.config.ensemble_scheduling.step]
    return [model, *(model.others[name] for name in steps if name in model.others)]


def _reads_parameters(model: Model) -> bool:
    scripts = [folder / "model.py" for folder in model.served] if model.backend == "python" else []
    return any(
        ".parameters()" in file.read_text(encoding="utf-8", errors="replace") for file in scripts if file.is_file()
    )


def unknown_parameter(model: Model) -> Iterator[Problem]:
    """Parameters that something reads: others are ignored without a word."""
    if model.backend == "onnxruntime":
        known = _ONNXRUNTIME
    elif model.backend == "python" and settings.FORM in model.parameters:
        known = settings.KNOWN | _PYTHON
    else:
        return
    for key in sorted(model.parameters.keys() - known):
        yield Problem(f"parameters.{key}", "is unknown and would be ignored", f"known: {', '.join(sorted(known))}")


def parameter_value(model: Model) -> Iterator[Problem]:
    """Counts are whole numbers."""
    ours = model.backend == "python" and settings.FORM in model.parameters
    keys = ("threads", "fixed_dim") if ours else _ONNXRUNTIME_NUMBERS if model.backend == "onnxruntime" else ()
    for key in keys:
        value = model.parameters.get(key)
        if value is not None and not (_WHOLE.fullmatch(value) and int(value) >= ours):
            yield Problem(f"parameters.{key}", f"is {value!r}", "give a whole number")


def warmup(model: Model) -> Iterator[Problem]:
    """Warm-up requests are requests that the model takes, and their files hold them."""
    inputs = {each.name: each for each in model.config.input}
    for sample in model.config.model_warmup:
        field = f"model_warmup.{sample.name}"
        if not 0 < sample.batch_size <= max(1, model.config.max_batch_size):
            yield Problem(f"{field}.batch_size", f"is {sample.batch_size}", "give one from 1 to max_batch_size")
        for missing in sorted({key for key, each in inputs.items() if not each.optional} - set(sample.inputs)):
            yield Problem(field, f"lacks input {missing!r}", "add it")
        for key, given in sample.inputs.items():
            if key in inputs:  # others are ignored
                yield from _warmup_tensor(model, f"{field}.inputs.{key}", inputs[key], given)


def _warmup_tensor(model: Model, field: str, declared: Any, given: Any) -> Iterator[Problem]:
    kind = type_name(given.data_type)
    if given.data_type != declared.data_type:
        yield Problem(
            f"{field}.data_type", f"is {kind}, the input's is {type_name(declared.data_type)}", "make it that"
        )
    fits = len(given.dims) == len(declared.dims) and all(
        size == wanted or wanted == -1 for size, wanted in zip(given.dims, declared.dims, strict=True)
    )
    if not fits:
        yield Problem(f"{field}.dims", f"is {list(given.dims)}, the input's is {list(declared.dims)}", "make it fit")
    if not given.input_data_file:
        return
    file = model.folder / "warmup" / given.input_data_file
    if not file.is_file():
        yield Problem(f"{field}.input_data_file", f"warmup/{file.name} is not there", "add the file")
        return
    data, elements = file.read_bytes(), prod(given.dims)
    expected = _BYTES.get(kind)
    if expected is not None and len(data) != expected * elements:
        told = f"warmup/{file.name} has {len(data)} bytes, {elements} elements of {kind} have {expected * elements}"
        yield Problem(f"{field}.input_data_file", told, "write the file again")
    if kind == "TYPE_STRING" and _texts_in(data) != elements:
        told = f"warmup/{file.name} holds no {elements} texts, each behind its length in bytes"
        yield Problem(f"{field}.input_data_file", told, "write each text behind its length, 4 bytes, little-endian")


def _texts_in(data: bytes) -> int | None:
    """How many texts are in a file as Triton reads it; None where it cannot be read so."""
    count = at = 0
    while at < len(data):
        if at + 4 > len(data):
            return None
        at += 4 + struct.unpack_from("<I", data, at)[0]
        count += 1
    return count if at == len(data) else None
