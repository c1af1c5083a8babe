"""Rules on models of the onnxruntime backend: the config against the graph, and the graph against the release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triton_repo.lint import Model, Problem
from triton_repo.lint_config import enum_name, type_name

# ONNX's element types by what Triton calls them.
_TYPES = {
    **{"TYPE_FP32": 1, "TYPE_UINT8": 2, "TYPE_INT8": 3, "TYPE_UINT16": 4, "TYPE_INT16": 5, "TYPE_INT32": 6},
    **{"TYPE_INT64": 7, "TYPE_STRING": 8, "TYPE_BOOL": 9, "TYPE_FP16": 10, "TYPE_FP64": 11, "TYPE_UINT32": 12},
    **{"TYPE_UINT64": 13, "TYPE_BF16": 16},
}
_NAMES = {number: name for name, number in _TYPES.items()}
_PER_ROW = ("BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN")


def readable(model: Model) -> Iterator[Problem]:
    """The graph can be read, and weights outside of it are there."""
    if model.backend != "onnxruntime" or not model.served:
        return
    folder = model.served[-1]
    if model.graph is None and (model.folder / _file(model)).is_file():
        yield Problem("", "is no ONNX graph", "export the model again", _file(model))
    elif model.graph is not None:
        from onnx.external_data_helper import uses_external_data

        outside = [each for each in model.graph.graph.initializer if uses_external_data(each)]
        files = {entry.value for each in outside for entry in each.external_data if entry.key == "location"}
        for file in sorted(files):
            if not (folder / file).is_file():
                yield Problem("", f"{file}, its weights, is not there", "add it", _file(model))


def release(model: Model) -> Iterator[Problem]:
    """Operator set and file format are known to the release's ONNX Runtime."""
    if model.graph is None:
        return
    wanted = model.target.release
    opset = max((each.version for each in model.graph.opset_import if each.domain in ("", "ai.onnx")), default=0)
    way_out = f"export it for Triton {wanted.name} (ONNX Runtime {wanted.onnxruntime})"
    if opset > wanted.opset:
        yield Problem("opset_import", f"is {opset}, at most {wanted.opset} runs", way_out, _file(model))
    if model.graph.ir_version > wanted.ir_version:
        told = f"is {model.graph.ir_version}, at most {wanted.ir_version} runs"
        yield Problem("ir_version", told, way_out, _file(model))


def names(model: Model) -> Iterator[Problem]:
    """All inputs of the graph are fed, and nothing is named that it does not have."""
    if model.graph is None:
        return
    known, listed = _inputs(model), {each.name for each in model.config.input} | _targets(model)
    for missing in sorted(known.keys() - listed):
        yield Problem("input", f"input {missing!r} of the graph is not listed", "list it")
    for each in sorted(listed - known.keys()):
        yield Problem(f"input.{each}", "is no input of the graph", f"known: {', '.join(known)}")
    outputs = {value.name for value in model.graph.graph.output}
    for value in model.config.output:
        if value.name not in outputs:
            told = f"known: {', '.join(sorted(outputs))}"
            yield Problem(f"output.{value.name}", "is no output of the graph", told)


def types(model: Model) -> Iterator[Problem]:
    """Inputs and outputs have the graph's types."""
    for side, each, value in _pairs(model):
        found = value.type.tensor_type.elem_type
        if _TYPES.get(type_name(each.data_type)) != found:
            told = f"is {type_name(each.data_type)}, the graph's is {_NAMES.get(found, found)}"
            yield Problem(f"{side}.{each.name}.data_type", told, "make it the graph's")


def dims(model: Model) -> Iterator[Problem]:
    """Dims are the graph's without its batch axis; what the config has as a number is one in the graph."""
    for side, each, value in _pairs(model):
        if side == "input" and each.allow_ragged_batch:
            continue  # `ragged-rank`
        axes = _axes(value)
        given = [*([-1] if model.config.max_batch_size > 0 else []), *(each.reshape.shape or each.dims)]
        if len(given) != len(axes) or any(a != b for a, b in zip(given[1:], axes[1:], strict=True)):
            told = f"with the batch axis is {given}, the graph's is {axes}"
            yield Problem(f"{side}.{each.name}.dims", told, "make it the graph's; -1 stands for a named axis")


def batch_axis(model: Model) -> Iterator[Problem]:
    """Where requests are batched, the first axis of every tensor may have any size."""
    if model.config.max_batch_size > 0:
        for side, each, value in _pairs(model):
            if _axes(value)[:1] not in ([-1], []):
                told = f"the graph has {_axes(value)[0]} rows, fixed, and max_batch_size is more than 0"
                yield Problem(f"{side}.{each.name}", told, "export with a dynamic batch axis, or set max_batch_size 0")


def ragged_rank(model: Model) -> Iterator[Problem]:
    """A ragged input arrives as one row of values, whatever the requests were."""
    for side, each, value in _pairs(model):
        if side == "input" and each.allow_ragged_batch and len(_axes(value)) != 1:
            told = f"is true, and the graph's input has {len(_axes(value))} axes; one arrives"
            yield Problem(f"input.{each.name}.allow_ragged_batch", told, "use a graph of layout packed")


def ragged_kind(model: Model) -> Iterator[Problem]:
    """Lengths are told of rows: other kinds tell those of requests, and mix up the vectors of several."""
    kinds = [each.kind for each in model.config.batch_input]
    ragged = [each.name for each in model.config.input if each.allow_ragged_batch]
    if model.backend == "onnxruntime" and ragged and not kinds:
        yield Problem("batch_input", "is not there, so nothing tells rows apart", f"add {_PER_ROW[1]}")
    for each in model.config.batch_input:
        kind = enum_name(each.Kind, each.kind)
        if kind not in _PER_ROW:
            yield Problem("batch_input.kind", f"is {kind}, which counts requests and not rows", f"use {_PER_ROW[1]}")


def ragged_target(model: Model) -> Iterator[Problem]:
    """A batch input has one target, of a type that arrives as it is, and a source that is ragged."""
    known = _inputs(model)
    ragged = [each.name for each in model.config.input if each.allow_ragged_batch]
    for each in model.config.batch_input:
        kind = type_name(each.data_type)
        if len(each.target_name) != 1:
            yield Problem("batch_input.target_name", f"has {len(each.target_name)} names", "give each its own entry")
        if kind not in ("TYPE_INT32", "TYPE_FP32"):
            yield Problem("batch_input.data_type", f"is {kind}", "make it TYPE_INT32, and the graph's input int32")
        for name in (name for name in each.target_name if name in known):
            found = known[name].type.tensor_type.elem_type
            if found != _TYPES.get(kind):
                told = f"is {kind}, the graph's {name} is {_NAMES.get(found, found)}"
                yield Problem("batch_input.data_type", told, "make both TYPE_INT32")
        for name in each.source_input:
            if name not in ragged:
                yield Problem("batch_input.source_input", f"{name!r} is no ragged input", f"known: {', '.join(ragged)}")


def ragged_batch(model: Model) -> Iterator[Problem]:
    """Ragged inputs need batches: with max_batch_size 0 their lengths arrive empty."""
    if model.config.batch_input and model.config.max_batch_size < 1:
        yield Problem("max_batch_size", "is 0 beside batch_input", "give one from 1")


def graph_level(model: Model) -> Iterator[Problem]:
    """Optimisation is on: level 2, which looks like the most, is none at all."""
    level = model.config.optimization.graph.level
    if model.backend == "onnxruntime" and level not in (-1, 0, 1):
        told = f"is {level}: 2 switches all optimisation off" if level == 2 else f"is {level}, which means nothing"
        yield Problem("optimization.graph.level", told, "leave it out for all optimisation; 1 is extended, -1 basic")


def _file(model: Model) -> str:
    """The graph's file, in the model's folder."""
    return f"{model.served[-1].name}/{model.config.default_model_filename or 'model.onnx'}"


def _inputs(model: Model) -> dict[str, Any]:
    """The graph's inputs that are fed, by name."""
    if model.graph is None:
        return {}
    weights = {each.name for each in model.graph.graph.initializer}
    return {value.name: value for value in model.graph.graph.input if value.name not in weights}


def _targets(model: Model) -> set[str]:
    return {name for each in model.config.batch_input for name in each.target_name}


def _pairs(model: Model) -> Iterator[tuple[str, Any, Any]]:
    """Side, the config's tensor and the graph's of the same name."""
    if model.graph is None:
        return
    for side, known in (
        ("input", _inputs(model)),
        ("output", {value.name: value for value in model.graph.graph.output}),
    ):
        for each in getattr(model.config, side):
            if each.name in known:
                yield side, each, known[each.name]


def _axes(value: Any) -> list[int]:
    """The sizes of a graph's tensor; -1 for a named axis."""
    return [axis.dim_value if axis.HasField("dim_value") else -1 for axis in value.type.tensor_type.shape.dim]
