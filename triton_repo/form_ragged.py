"""Form ``ragged``: a python tokenizer, and the packed graph on Triton's onnxruntime backend, as one ensemble.

```
TEXT ─▶ NAME_tokens (python) ─▶ input_ids, attention_mask [n, L] ─▶ NAME_graph (onnxruntime) ─▶ EMBEDDING
                             └▶ TOKENS, TRUNCATED, INFO
```

Both inputs of the graph may be ragged, so requests of different lengths share an execution: the server lays their rows
end to end, pads included, and tells each row's padded length. The kind that does so for several rows a request is
``BATCH_ITEM_SHAPE_FLATTEN``; the kinds that count elements do it for requests, and with those a request of two rows was
seen to get another client's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentport.bundle import DESCRIPTION_FILE, TOKENIZER_FILE, Bundle, GraphRecord
from sentport.errors import SentportError
from triton_repo import config, form_text, settings, wire
from triton_repo.config import ModelFolder
from triton_repo.form_text import Choice
from triton_repo.releases import Release

DEVICES = ("cpu", "cuda", "tensorrt")
# Plain operators, whose meaning an opset fixes; fused ones, as in flavour ort, belong to one version of ONNX Runtime.
FLAVOURS = ("portable",)
GRAPH_FILE = "model.onnx"
_STEP_INPUTS = (wire.INPUT_IDS, wire.ATTENTION_MASK, wire.POOLING_MASK)
_TRT_WORKSPACE_BYTES = 1 << 32


def models(choice: Choice, release: Release) -> dict[str, ModelFolder]:
    """The three models of this form, by their names.

    Raises:
        SentportError: When the graph does not run on the release, or not on the device.
    """
    check_graph(choice.graph, choice.device, release)
    tokens, graph = f"{choice.name}_tokens", graph_model(choice.name)
    inputs = [name for name in _STEP_INPUTS if name in {tensor.name for tensor in choice.graph.inputs}]
    return {
        choice.name: ModelFolder(ensemble(choice, tokens, graph, inputs)),
        tokens: tokens_folder(choice, tokens, inputs),
        graph: ModelFolder(
            _graph(choice, graph, inputs),
            files=graph_files(choice.bundle, choice.graph),
            warmup=_warmup_files(choice.bundle.spec.max_tokens),
        ),
    }


def graph_model(name: str) -> str:
    """The name of the model with the graph, of the ensemble ``name``."""
    return f"{name}_graph"


def check_graph(graph: GraphRecord, device: str, release: Release) -> None:
    """Refuse a graph that the release's onnxruntime backend does not run on a device.

    Raises:
        SentportError: When it does not.
    """
    if graph.opset > release.opset or graph.ir_version > release.ir_version:
        raise SentportError(
            f"{graph.file} has opset {graph.opset} and IR version {graph.ir_version}, but Triton {release.name} (ONNX "
            f"Runtime {release.onnxruntime}) takes opset {release.opset} and IR version {release.ir_version} at most; "
            "export the checkpoint again, or serve form text"
        )
    if graph.precision == "bf16" and device != "cuda":
        where = "on a CPU" if device == "cpu" else "through TensorRT in this release"
        raise SentportError(f"{graph.file} is bf16, which ONNX Runtime does not run {where}; use device cuda")


def tokens_folder(
    choice: Choice, name: str, inputs: list[str], parameters: Mapping[str, str] | None = None
) -> ModelFolder:
    """The model that tokenises, which hands on ``inputs``; ``parameters`` say what else it does."""
    return ModelFolder(
        _tokens(choice, name, inputs, parameters or {}),
        files=_tokenizer_files(choice.bundle),
        warmup={sample: config.text_element(text) for sample, text in form_text.WARMUP_TEXTS.items()},
    )


def ensemble(choice: Choice, tokens: str, graph: str, inputs: list[str]) -> str:
    """The configuration of the model that clients see, whose steps are the two named ones."""
    to_client = (wire.TOKENS, wire.TRUNCATED, wire.INFO)
    lines = [
        f"name: {config.quoted(choice.name)}",
        'platform: "ensemble"',
        f"max_batch_size: {choice.batching.max_batch}",
        form_text.text_input(),
        config.tensor("output", wire.EMBEDDING, "FP32", [choice.bundle.spec.dim]),
        *form_text.told_outputs(),
        "ensemble_scheduling {",
        *_step(tokens, {wire.TEXT: wire.TEXT}, {name: name for name in (*inputs, *to_client)}),
        *_step(graph, {name: name for name in inputs}, {choice.graph.outputs[0].name: wire.EMBEDDING}),
        "}",
        *config.parameters({wire.ENCODER: form_text.described(choice.info)}),
    ]
    return "\n".join(lines) + "\n"


def _step(model: str, takes: Mapping[str, str], gives: Mapping[str, str]) -> list[str]:
    maps = [("input_map", takes), ("output_map", gives)]
    return [
        "  step {",
        f"    model_name: {config.quoted(model)}",
        "    model_version: -1",
        *(
            f"    {side} {{ key: {config.quoted(own)} value: {config.quoted(shared)} }}"
            for side, names in maps
            for own, shared in names.items()
        ),
        "  }",
    ]


def _tokens(choice: Choice, name: str, inputs: list[str], parameters: Mapping[str, str]) -> str:
    values = {settings.FORM: "tokens", settings.PART_OF: choice.name, **parameters}
    if choice.threads is not None:
        values["threads"] = str(choice.threads)
    values[wire.ENCODER] = form_text.described(choice.info)
    # What waits is put together; nothing waits for company, since the next step has its own delay.
    batching = replace(choice.batching, delay_us=0, shares=None)
    if batching.own_line:
        values |= settings.line(batching)
    lines = [
        f"name: {config.quoted(name)}",
        'backend: "python"',
        f"max_batch_size: {batching.max_batch}",
        form_text.text_input(),
        *(config.tensor("output", each, "INT64", [-1]) for each in inputs),
        *form_text.told_outputs(),
        config.instances("cpu", batching),
        *config.queue(batching, limits=not batching.own_line),
        *config.parameters(values),
        *form_text.warmup_lines(form_text.WARMUP_TEXTS),
    ]
    return "\n".join(lines) + "\n"


def _graph(choice: Choice, name: str, inputs: list[str]) -> str:
    output = choice.graph.outputs[0]
    values = {settings.PART_OF: choice.name}
    if choice.device == "cpu" and choice.threads is not None:
        values["intra_op_thread_count"] = str(choice.threads)
    lines = [
        f"name: {config.quoted(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {choice.batching.max_batch}",
        *(config.tensor("input", each, "INT64", [-1], ragged=True) for each in inputs),
        # One kind, one target name, INT32: whatever else loads fails later, or mixes requests up.
        "batch_input [ { kind: BATCH_ITEM_SHAPE_FLATTEN data_type: TYPE_INT32 "
        f"target_name: {config.quoted(wire.LENGTHS)} source_input: {config.quoted(wire.INPUT_IDS)} }} ]",
        config.tensor("output", output.name, "FP32", [choice.bundle.spec.dim]),
        config.instances("cpu" if choice.device == "cpu" else "gpu", choice.batching),
        *config.queue(choice.batching),
        *_accelerators(choice.device, choice.graph.precision),
        *config.parameters(values),
        *(
            config.warmup_sample(size, {each: ("INT64", [length], _warmup_file(each, size)) for each in inputs})
            for size, length in _warmup_lengths(choice.bundle.spec.max_tokens).items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _accelerators(device: str, precision: str) -> list[str]:
    if device == "cpu":
        return []
    providers = {"cuda": {"use_tf32": "0"}}  # on by default, and worse than the fp32 gate allows
    if device == "tensorrt":
        # Each shape's engine is built once and kept; a packed graph has as many shapes as there are batches, so that
        # the ranges are widened and engines built again until they hold all that comes.
        tensorrt = {
            "precision_mode": {"fp16": "FP16", "int8": "INT8"}.get(precision, "FP32"),
            "max_workspace_size_bytes": str(_TRT_WORKSPACE_BYTES),
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": "/tmp/sentport-trt",
        }
        providers = {"tensorrt": tensorrt, **providers}
    lines = ["optimization { execution_accelerators {"]
    for name, options in providers.items():
        given = " ".join(
            f"parameters {{ key: {config.quoted(k)} value: {config.quoted(v)} }}" for k, v in options.items()
        )
        lines.append(f'  gpu_execution_accelerator [ {{ name: "{name}" {given} }} ]')
    return [*lines, "} }"]


def _tokenizer_files(bundle: Bundle) -> dict[str, Path]:
    return {f"{settings.BUNDLE_FOLDER}/{file}": bundle.path / file for file in (DESCRIPTION_FILE, TOKENIZER_FILE)}


def graph_files(bundle: Bundle, graph: GraphRecord) -> dict[str, Path]:
    """What lies in a version folder of the model with the graph."""
    files = {GRAPH_FILE: bundle.path / graph.file}
    if graph.data_sha256 is not None:  # the graph names it as it is called in the bundle
        files[Path(graph.data_file).name] = bundle.path / graph.data_file
    return files


def _warmup_lengths(max_tokens: int) -> dict[str, int]:
    return {"short": min(8, max_tokens), "long": max_tokens}


def _warmup_file(tensor: str, size: str) -> str:
    return f"{tensor}-{size}"


def _warmup_files(max_tokens: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for size, length in _warmup_lengths(max_tokens).items():
        ones: NDArray[np.int64] = np.ones(length, np.int64)
        # Id 1 is in every vocabulary, and no pad counts as a token where the mask is one.
        files |= {_warmup_file(tensor, size): config.ids_file(ones) for tensor in _STEP_INPUTS}
    return files
