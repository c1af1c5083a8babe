"""Form ``text``: one python model from texts to vectors, on any Triton."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from sentport.bundle import Bundle, GraphRecord
from sentport.encoder import EncoderInfo
from sentport.engines import FLAVOURS
from sentport.engines.opening import runnable
from sentport.errors import SentportError
from sentport.inputs import check_dim, prompt_text
from triton_repo import config, settings, wire
from triton_repo.config import Batching, ModelFolder
from triton_repo.requests import Fixed

DEVICES = ("cpu", "cuda")
# Several scripts, bytes and lengths, so that the first user does not pay for the first of each kind.
WARMUP_TEXTS = {
    "short": "Žluťoučký kůň pěl ďábelské ódy 🙂",
    "empty": "",
    "long": "Ein längerer Satz, 多语言的句子, και μερικές ελληνικές λέξεις. " * 40,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is served, and how.

    Attributes:
        name: The model's name on the server.
        bundle: The bundle.
        graph: Its graph, or its file for engine ``native``.
        device: Where the graph runs.
        threads: Compute threads in all; None = the cores that the server may use.
        batching: How requests wait and are put together.
        engine: What runs the graph.
    """

    name: str
    bundle: Bundle
    graph: GraphRecord
    device: str
    threads: int | None
    batching: Batching
    engine: str = "onnxruntime"

    @property
    def info(self) -> EncoderInfo:
        """The encoder as far as it is known before a server opens it: sessions and threads are 0."""
        spec = self.bundle.spec
        return EncoderInfo(
            dim=spec.dim,
            max_tokens=spec.max_tokens,
            prompts=dict(spec.prompts),
            default_prompt=spec.default_prompt,
            similarity=spec.similarity,
            fingerprint=spec.fingerprint,
            engine=self.engine,
            precision=self.graph.precision,
            layout=self.graph.layout,
            device=self.device,
            sessions=0,
            threads=0,
        )


def graph_of(bundle: Bundle, engine: str, layout: str, precision: str, device: str) -> GraphRecord:
    """What an engine runs of a bundle in this form.

    Raises:
        BundleError: When there is no such graph.
    """
    provider = "cpu" if device == "cpu" else "cuda"
    return runnable(bundle, engine).select(layout, bundle.precision_of(precision), provider, FLAVOURS[engine])


def models(choice: Choice, fixed: Fixed | None) -> dict[str, ModelFolder]:
    """The one model of this form, by its name.

    Args:
        choice: What is served, and how.
        fixed: Make the cacheable variant, which answers every request in this one way.

    Raises:
        SentportError: When the bundle has no such prompt or dim.
    """
    samples = _warmup_texts(fixed)
    folder = ModelFolder(
        _config(choice, fixed, samples),
        files={settings.BUNDLE_FOLDER: choice.bundle.path},
        warmup={name: config.text_element(text) for name, text in samples.items()},
    )
    return {choice.name: folder}


def described(info: EncoderInfo) -> str:
    """An encoder's description as ``config.pbtxt`` holds it."""
    return json.dumps(asdict(info))


def text_input() -> str:
    """The line of the one input."""
    return config.tensor("input", wire.TEXT, "STRING", [1])


def told_outputs() -> list[str]:
    """The lines of the outputs beside the vectors."""
    return [
        config.tensor("output", wire.TOKENS, "INT32", [1]),
        config.tensor("output", wire.TRUNCATED, "BOOL", [1]),
        config.tensor("output", wire.INFO, "STRING", [1]),
    ]


def warmup_lines(samples: Mapping[str, str]) -> list[str]:
    """The lines of warm-up texts, each in the file of its name."""
    return [config.warmup_sample(name, {wire.TEXT: ("STRING", [1], name)}) for name in samples]


def _config(choice: Choice, fixed: Fixed | None, samples: Mapping[str, str]) -> str:
    graph = choice.graph
    values = {settings.FORM: "text", settings.ENGINE: choice.engine, "device": choice.device}
    values |= {"layout": graph.layout, "precision": graph.precision}
    if choice.threads is not None:
        values["threads"] = str(choice.threads)
    # A refusal by the model would be kept in the cache, as everybody's answer to these texts.
    own_line = choice.batching.own_line and fixed is None
    if own_line:
        values |= settings.line(choice.batching)
    info = choice.info
    width = -1  # dim is a request parameter
    outputs = told_outputs()
    if fixed is not None:
        values |= _fixed_parameters(choice.bundle, fixed)
        width, outputs = fixed.dim or info.dim, []
        info = replace(info, dim=width)
        if fixed.prompt is not None:
            info = replace(info, default_prompt=fixed.prompt or None)
    values[wire.ENCODER] = described(info)
    lines = [
        f"name: {config.quoted(choice.name)}",
        'backend: "python"',
        f"max_batch_size: {choice.batching.max_batch}",
        text_input(),
        config.tensor("output", wire.EMBEDDING, "FP32", [width]),
        *outputs,
        # One instance: it merges all that waits, and the engine inside has the cores to itself.
        config.instances("gpu" if choice.device == "cuda" else "cpu", choice.batching),
        *config.queue(choice.batching, limits=not own_line),
        # The cache's key holds neither request parameters nor the outputs asked for.
        f"response_cache {{ enable: {'false' if fixed is None else 'true'} }}",
        *config.parameters(values),
        *warmup_lines(samples),
    ]
    return "\n".join(lines) + "\n"


def _fixed_parameters(bundle: Bundle, fixed: Fixed) -> Mapping[str, str]:
    spec = bundle.spec
    if fixed.on_truncate not in wire.TRUNCATE_POLICIES:
        known = ", ".join(wire.TRUNCATE_POLICIES)
        raise SentportError(f"the fixed truncation policy is {fixed.on_truncate!r}; expected one of {known}")
    prompt_text(spec.prompts, spec.default_prompt, fixed.prompt)  # an unknown name is told before anything is written
    parameters = {"fixed_on_truncate": fixed.on_truncate, "fixed_dim": str(check_dim(fixed.dim, spec.dim))}
    if fixed.prompt is not None:
        parameters["fixed_prompt"] = fixed.prompt
    return parameters


def _warmup_texts(fixed: Fixed | None) -> Mapping[str, str]:
    # A model that refuses texts over its limit would refuse the long one, and Triton then the model.
    strict = fixed is not None and fixed.on_truncate == "error"
    return {name: text for name, text in WARMUP_TEXTS.items() if not (strict and name == "long")}
