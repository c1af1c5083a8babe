"""``native/<precision>.safetensors``: a checkpoint's weights for engine ``native``, for encoders of BERT's shape.

int8 is like flavour ``ort``: weights of 7 bits, smoothed by the same calibration, and a scale for each token, here with
a zero point of its own. With that the second layer of a feed-forward block gains by smoothing too. Weights are rounded
by ``export.rounding``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from export.int8 import FORMS, smoothing
from export.rounding import fitted_levels
from export.sensitivity import Calibration, Int8Plan, fewest_kept
from export.signature import outputs, packed_inputs
from export.verify import check_graph, judged_by
from sentport.bundle import Bundle, GraphRecord, TensorRecord, sha256_of
from sentport.engines.native_file import METADATA, read_native
from sentport.errors import GateError
from sentport.gate import Run
from sentport.hardware import available_cores
from sentport.modeling.chain import Dense, LayerMean, LayerNorm, Normalize, Truncate
from sentport.modeling.pooling import Pooling
from sentport.modeling.sentence_model import SentenceModel
from sentport.suite import Suite
from sentport.tokenizer import Tokenizer

PRECISIONS = ("fp32", "bf16", "int8")
_POOLING = ("mean", "cls", "max")
_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python", "gelu_accurate"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"),
    "relu": "relu",
}
_DENSE_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "Sigmoid", "GELU")


class _Names(NamedTuple):
    """Where an architecture keeps the parts of a layer."""

    layers: str
    qkv: tuple[str, str, str]
    output: str
    attention_norm: str
    up: str
    down: str
    output_norm: str


_BERT = _Names(
    "encoder.layer",
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
_MPNET = _BERT._replace(
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
_DISTILBERT = _Names(
    "transformer.layer",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    *("attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
)
_ARCHITECTURES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "mpnet": _MPNET,
    "distilbert": _DISTILBERT,
}
# These count positions over the ids that are not the pad's, from the one after it on.
_COUNTS_PADS = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet"})


@dataclass(frozen=True)
class NativeModel:
    """A model as the native engine takes it, in fp32.

    Attributes:
        description: What the arrays make.
        arrays: Everything but the linear layers on tokens.
        linears: Those, by name: what multiplies the same values stands in one layer side by side.
    """

    description: Mapping[str, Any]
    arrays: Mapping[str, Tensor]
    linears: Mapping[str, tuple[nn.Linear, ...]]

    def write(self, file: Path, precision: str, int8: Mapping[str, Mapping[str, Tensor]] | None = None) -> None:
        """Write the file; of precision int8 with some linear layers as ``native_int8`` has them, the others in fp32."""
        tensors = dict(self.arrays)
        for name, layers in self.linears.items():
            weight = torch.cat([layer.weight for layer in layers])  # [out, in]
            tensors[f"{name}.bias"] = torch.cat([layer.bias for layer in layers])
            if int8 and name in int8:
                tensors |= {f"{name}.{part}": value for part, value in int8[name].items()}
            else:
                tensors[f"{name}.weight"] = weight.to(torch.bfloat16) if precision == "bf16" else weight
        tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        # save_file would make a file that nobody but its owner may read.
        file.write_bytes(save(tensors, {METADATA: json.dumps(self.description)}))


def native_model(model: SentenceModel) -> NativeModel:
    """The model for the native engine.

    Raises:
        NotCoveredError: Saying which part of it that engine does not have.
    """
    encoder = model.transformer.model
    names = _names(model)
    config = model.transformer.config
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation", None)
    if activation not in _ACTIVATIONS:
        raise NotCoveredError(f"activation {activation}")
    layers = list(encoder.get_submodule(names.layers))
    norms = {
        f"layers.{n}.{part}": layer.get_submodule(getattr(names, part))
        for n, layer in enumerate(layers)
        for part in ("attention_norm", "output_norm")
    }
    norms["embeddings.norm"] = encoder.embeddings.LayerNorm
    epsilons = {norm.eps for norm in norms.values()}
    if len(epsilons) > 1:
        raise NotCoveredError("norms with several epsilons")
    pooling, modules, module_arrays = _chain(model)
    linears = {}
    for n, layer in enumerate(layers):
        linears[f"layers.{n}.qkv"] = tuple(layer.get_submodule(name) for name in names.qkv)
        for part in ("output", "up", "down"):
            linears[f"layers.{n}.{part}"] = (layer.get_submodule(getattr(names, part)),)
    if hasattr(encoder, "embeddings_project"):
        linears["embeddings.projection"] = (encoder.embeddings_project,)
    description = {
        "layers": len(layers),
        "heads": int(config.num_attention_heads),
        "activation": _ACTIVATIONS[activation],
        "epsilon": epsilons.pop(),
        "pad_id": int(encoder.embeddings.padding_idx) if config.model_type in _COUNTS_PADS else -1,
        "pooling": pooling,
        "modules": modules,
    }
    arrays = {**_embeddings(encoder), **module_arrays}
    for name, norm in norms.items():
        arrays |= {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
    return NativeModel(description, arrays, linears)


class NotCoveredError(Exception):
    """The native engine does not have a part of a model, which is named."""


def _names(model: SentenceModel) -> _Names:
    encoder, config = model.transformer.model, model.transformer.config
    if config.model_type not in _ARCHITECTURES or not type(encoder).__module__.startswith("transformers."):
        raise NotCoveredError(f"architecture {config.model_type}")
    return _ARCHITECTURES[config.model_type]


def _embeddings(encoder: Any) -> dict[str, Tensor]:
    tables = encoder.embeddings
    arrays = {
        "embeddings.word": tables.word_embeddings.weight,
        "embeddings.position": tables.position_embeddings.weight,
    }
    if hasattr(tables, "token_type_embeddings"):
        arrays["embeddings.type"] = tables.token_type_embeddings.weight
    if (bias := getattr(getattr(encoder, "encoder", None), "relative_attention_bias", None)) is not None:
        reach = len(tables.position_embeddings.weight) - 1
        distance = torch.arange(-reach, reach + 1)  # of a key from its query
        buckets = encoder.encoder.relative_position_bucket(distance, num_buckets=bias.num_embeddings)
        arrays["attention.relative"] = bias(buckets).T  # [heads, 2 x positions - 1]
    return arrays


def _chain(model: SentenceModel) -> tuple[list[str], list[tuple[str, str]], dict[str, Tensor]]:
    """Pooling modes, the modules behind pooling, and their weights."""
    first, *rest = model.chain
    if isinstance(first, LayerMean) or not isinstance(first, Pooling):
        raise NotCoveredError(f"module {type(first).__name__} on token vectors")
    pooling = [mode.value for mode in first.modes]
    if unknown := [mode for mode in pooling if mode not in _POOLING]:
        raise NotCoveredError(f"pooling {', '.join(unknown)}")
    modules, arrays = [], {}
    for n, module in enumerate(rest):
        name, detail = f"modules.{n}", ""
        if isinstance(module, Dense):
            detail = type(module.activation).__name__
            exact = getattr(module.activation, "approximate", "none") == "none"
            if module.adds_input or detail not in _DENSE_ACTIVATIONS or not exact:
                raise NotCoveredError(f"Dense with {'a residual' if module.adds_input else detail}")
            arrays[f"{name}.weight"] = module.linear.weight
            if module.linear.bias is not None:
                arrays[f"{name}.bias"] = module.linear.bias
        elif isinstance(module, LayerNorm):
            arrays |= {f"{name}.weight": module.norm.weight, f"{name}.bias": module.norm.bias}
        elif isinstance(module, Truncate):
            detail = str(module.out_dim)
        elif not isinstance(module, Normalize):
            raise NotCoveredError(f"module {type(module).__name__}")
        modules.append((type(module).__name__, detail))
    return pooling, modules, arrays


def export_native(
    bundle: Bundle,
    model: SentenceModel,
    precisions: Sequence[str],
    calibration: Calibration | None,
    suite: Suite,
    tokenizer: Tokenizer,
    min_cosine: float | None,
    say: Callable[[str], None],
) -> Iterator[GraphRecord]:
    """Write and check the files that engine native can have; of what it cannot, say why.

    Args:
        bundle: The bundle in the making.
        model: The source model.
        precisions: As asked for; those that the engine does not know are passed over.
        calibration: What int8 is made with; needed for it alone.
        suite: What the gate compares with.
        tokenizer: The bundle's.
        min_cosine: A stricter limit for precisions under fp32.
        say: Told what is done and what is left out.

    Raises:
        GateError: When a file's vectors are not the source's.
    """
    if find_spec("sentport_native") is None:
        say("note: sentport-native is not installed, so engine native gets no files")
        return
    try:
        native = native_model(model)
    except NotCoveredError as error:
        say(f"note: engine native does not have {error}; the graphs are what runs")
        return
    (bundle.path / "native").mkdir()
    for precision in precisions:
        if precision not in PRECISIONS:
            continue
        record = _record(precision, model)
        file = bundle.path / record.file
        if precision == "int8":
            assert calibration is not None
            say("rounding the weights of engine native to int8")
            layers = native_int8(model, native, calibration.rows)
            try:
                plan = _plan_int8(native, layers, calibration, file, say)
            except GateError as error:
                say(f"note: engine native gets no int8 file: {error}")
                continue
            native.write(file, precision, {name: layers[name] for name in layers if name not in plan.kept})
            content = read_native(file)
            record = replace(record, int8=plan.record(content.int8_layers, content.numbers_sha256))
        else:
            native.write(file, precision)
        record = replace(record, sha256=sha256_of(file))
        say(f"checking {record.file}")
        parity = check_graph(bundle, record, suite, tokenizer, "native", min_cosine=min_cosine)
        yield replace(record, parity=parity.record(judged_by(record, "native")))


def _record(precision: str, model: SentenceModel) -> GraphRecord:
    types = [TensorRecord("token_type_ids", "int64", ("total_tokens",))] if model.uses_token_types else []
    return GraphRecord(
        file=f"native/{precision}.safetensors",
        layout="packed",
        precision=precision,
        flavour="native",
        inputs=(*packed_inputs(model.uses_pooling_mask), *types),
        outputs=outputs(model.dim),
        opset=0,
        ir_version=0,
        sha256="",
        operators={},
        parity={},
        packed="rewritten",
    )


def _plan_int8(
    native: NativeModel,
    int8: Mapping[str, Mapping[str, Tensor]],
    calibration: Calibration,
    file: Path,
    say: Callable[[str], None],
) -> Int8Plan:
    """Which layers are in int8; tried out in the file that is to be written."""
    from sentport.engines.native import best_level, make_model, run_model

    def runner(layers: Collection[str]) -> Run:
        native.write(file, "int8", {name: int8[name] for name in layers})
        made = make_model(read_native(file), best_level())
        return lambda batch: run_model(made, batch, available_cores())

    return fewest_kept([(name,) for name in native.linears], runner, FORMS["ort"], calibration, say)


def native_int8(
    model: SentenceModel, native: NativeModel, rows: Sequence[NDArray[np.int64]]
) -> dict[str, dict[str, Tensor]]:
    """Each linear layer in 8 bits: its weight, the scale of each output, and what its inputs are divided by.

    Args:
        model: The source model.
        native: The same for the native engine.
        rows: Token ids of the calibration texts.
    """
    seen, made = _layer_inputs(model, native, rows), {}
    for name, layers in native.linears.items():
        weight = np.concatenate([layer.weight.detach().numpy() for layer in layers])  # [out, in]
        inputs = seen.pop(name)
        factors = smoothing([weight.T], inputs.largest, narrowing=True)
        levels, scale = fitted_levels(weight * factors, inputs.products / np.outer(factors, factors))
        parts = {"weight": levels, "scale": scale, "smoothing": factors}
        made[name] = {part: torch.from_numpy(array) for part, array in parts.items()}
    return made


@dataclass
class _Inputs:
    """What goes into a linear layer: the largest of each ``[in]``, and sums of products of two ``[in, in]``."""

    largest: NDArray[np.float32]
    products: NDArray[np.float32]


@torch.inference_mode()
def _layer_inputs(model: SentenceModel, native: NativeModel, rows: Sequence[NDArray[np.int64]]) -> dict[str, _Inputs]:
    """The inputs of each linear layer, by its name, over some texts without a pad."""
    found: dict[str, _Inputs] = {}

    def watch(name: str, layer: nn.Linear) -> Any:
        width = layer.in_features
        inputs = found[name] = _Inputs(np.zeros(width, np.float32), np.zeros((width, width), np.float32))

        def see(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            tokens = given[0].flatten(0, -2)  # [tokens, in]
            inputs.largest = np.maximum(inputs.largest, tokens.abs().amax(dim=0).numpy())
            inputs.products += (tokens.T @ tokens).numpy()

        return layer.register_forward_pre_hook(see)

    hooks = [watch(name, layers[0]) for name, layers in native.linears.items()]
    try:
        for length in {len(ids) for ids in rows}:  # those of one length together
            ids = torch.from_numpy(np.stack([row for row in rows if len(row) == length]))  # [rows, length]
            model.transformer(ids, torch.ones_like(ids))
    finally:
        for hook in hooks:
            hook.remove()
    return found
