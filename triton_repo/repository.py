"""A bundle becomes a Triton model repository.

```
OUT/NAME/config.pbtxt       queue, batching, warm-up, and what the model is opened with
OUT/NAME/warmup/...         warm-up texts in Triton's format
OUT/NAME/1/model.py         a few lines that call the sentport of the server's environment
OUT/NAME/1/bundle/          the bundle, hard-linked where the file system allows it
```
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sentport.bundle import Bundle, GraphRecord, read_bundle
from sentport.encoder import EncoderInfo
from sentport.errors import SentportError
from sentport.files import folder_written_aside
from sentport.inputs import check_dim, prompt_text
from triton_repo import wire
from triton_repo.model_text import BUNDLE_FOLDER, Fixed

FORMS = ("text", "ragged", "plan")
DEVICES = ("cpu", "cuda")
CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.py"
WARMUP_FOLDER = "warmup"

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

# Several scripts, bytes and lengths, so that the first user does not pay for the first of each kind.
WARMUP_TEXTS = {
    "short": "Žluťoučký kůň pěl ďábelské ódy 🙂",
    "empty": "",
    "long": "Ein längerer Satz, 多语言的句子, και μερικές ελληνικές λέξεις. " * 40,
}


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests wait and are put together.

    Attributes:
        max_batch: Rows of one execution, and of one request. The model batches them by tokens, with less padding the
            more there are; it bounds how long an execution holds up the next.
        delay_us: How long the first request of an execution waits for company, microseconds.
        max_queue: Requests that may wait; one more is refused at once.
        timeout_ms: How long a request may wait before it is refused, milliseconds; it may itself ask for less.
    """

    max_batch: int = 512
    delay_us: int = 500
    max_queue: int = 1024
    timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        for name, least in (("max_batch", 1), ("delay_us", 0), ("max_queue", 1), ("timeout_ms", 1)):
            if getattr(self, name) < least:
                raise SentportError(f"{name} is {getattr(self, name)}; expected a whole number from {least}")


def write_repository(
    bundle: Path,
    out: Path,
    *,
    name: str | None = None,
    form: str = "text",
    device: str = "cpu",
    layout: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    batching: Batching | None = None,
    fixed: Fixed | None = None,
    force: bool = False,
) -> Path:
    """Write a model repository with one model; it appears only when it is complete.

    Args:
        bundle: The bundle folder; its files are checked by hash.
        out: The repository's folder.
        name: The model's name on the server; None = the bundle folder's name.
        form: ``text``.
        device: ``cpu`` or ``cuda``; the model does not load where it cannot run there.
        layout: ``padded``, ``packed`` or ``auto``, as for ``sentport.Encoder``.
        precision: ``auto`` takes fp32 where there is one, as for ``sentport.Encoder``.
        threads: Compute threads in all; None = the cores that the server may use.
        batching: How requests wait and are put together.
        fixed: Write the cacheable variant: fixed prompt, dim and truncation, one output, no request parameters.
        force: Replace an existing repository, all of whose models this function wrote.

    Returns:
        ``out``.

    Raises:
        SentportError: When the bundle cannot be read, something asked for cannot be had, or ``out`` exists.
    """
    _check_choices(form, device, threads)
    opened = read_bundle(bundle)
    opened.tokenizer_file()
    graph = opened.select(layout, precision, device)
    opened.graph_file(graph)
    model = model_name(bundle) if name is None else name
    if not _NAME.fullmatch(model):
        raise SentportError(
            f"{model!r} cannot be a model's name (letters, digits, '_', '-', '.'); give one with --name"
        )
    config = _config(model, opened, graph, device, threads, batching or Batching(), fixed)
    _check_out(out, bundle, force)
    with folder_written_aside(out) as folder:
        _write_model(folder / model, opened, config, _warmup_texts(fixed))
    return out


def model_name(bundle: Path) -> str:
    """The name that a bundle's model gets when none is given."""
    return bundle.resolve().name.removesuffix(".bundle")


def warmup_element(text: str) -> bytes:
    """One text as Triton reads it from a file: its length in bytes (not characters), then the bytes."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _check_choices(form: str, device: str, threads: int | None) -> None:
    if form not in FORMS:
        raise SentportError(f"form {form!r} is unknown; expected text")
    if form != "text":
        raise SentportError(f"form {form} is not supported yet; use form text")
    if device not in DEVICES:
        raise SentportError(f"device {device!r} is unknown to form text; expected one of {', '.join(DEVICES)}")
    if threads is not None and threads < 1:
        raise SentportError(f"threads is {threads}; expected a whole number from 1, or none for all cores")


def _check_out(out: Path, bundle: Path, force: bool) -> None:
    if out.is_symlink():
        raise SentportError(f"{out} is a symbolic link; give the folder itself")
    if out.resolve().is_relative_to(bundle.resolve()):
        raise SentportError(f"{out} lies inside the bundle, which stays as it is; name another folder")
    nearest = next(parent for parent in out.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise SentportError(f"{out} cannot be made: {nearest} is not a folder")
    if not out.exists():
        return
    if not force:
        raise SentportError(f"{out} exists; add --force to replace it, or name another folder")
    children = list(out.iterdir()) if out.is_dir() else []
    if not out.is_dir() or not all((child / CONFIG_FILE).is_file() for child in children):
        raise SentportError(f"{out} is not a model repository, so --force does not replace it; name another folder")
    foreign = sorted(child.name for child in children if not _is_ours(child))
    if foreign:
        raise SentportError(
            f"{out} holds {', '.join(foreign)}, which `sentport repository` did not write, so --force does not replace "
            "it; name another folder"
        )


def _is_ours(model: Path) -> bool:
    config = (model / CONFIG_FILE).read_text(encoding="utf-8", errors="replace")
    return f"parameters {{ key: {_quoted(wire.ENCODER)} " in config


def _write_model(folder: Path, bundle: Bundle, config: str, warmup: Mapping[str, str]) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(config, encoding="utf-8")
    shutil.copyfile(_TEMPLATES / "text" / MODEL_FILE, version / MODEL_FILE)
    # Links are safe since nobody edits a finished bundle, and a bundle of gigabytes costs nothing.
    shutil.copytree(bundle.path, version / BUNDLE_FOLDER, copy_function=_link_or_copy)
    (folder / WARMUP_FOLDER).mkdir()
    for name, text in warmup.items():
        (folder / WARMUP_FOLDER / name).write_bytes(warmup_element(text))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(Path(source).resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _config(
    name: str,
    bundle: Bundle,
    graph: GraphRecord,
    device: str,
    threads: int | None,
    batching: Batching,
    fixed: Fixed | None,
) -> str:
    parameters = {"device": device, "layout": graph.layout, "precision": graph.precision}
    if threads is not None:
        parameters["threads"] = str(threads)
    if fixed is not None:
        parameters |= _fixed_parameters(bundle, fixed)
    parameters[wire.ENCODER] = json.dumps(asdict(_described(bundle, graph, device, fixed)))
    group = "kind: KIND_GPU count: 1 gpus: [ 0 ]" if device == "cuda" else "kind: KIND_CPU count: 1"
    lines = [
        f"name: {_quoted(name)}",
        'backend: "python"',
        f"max_batch_size: {batching.max_batch}",
        f'input [ {{ name: "{wire.TEXT}" data_type: TYPE_STRING dims: [ 1 ] }} ]',
        *_outputs(bundle, fixed),
        # One instance: it merges all that waits, and the engine inside has the cores to itself.
        f"instance_group [ {{ {group} }} ]",
        *_batching_lines(batching),
        # The cache's key holds neither request parameters nor the outputs asked for.
        f"response_cache {{ enable: {'false' if fixed is None else 'true'} }}",
        *(f"parameters {{ key: {_quoted(k)} value: {{ string_value: {_quoted(v)} }} }}" for k, v in parameters.items()),
        *_warmup_lines(_warmup_texts(fixed)),
    ]
    return "\n".join(lines) + "\n"


def _described(bundle: Bundle, graph: GraphRecord, device: str, fixed: Fixed | None) -> EncoderInfo:
    """The encoder as far as it is known before a server opens it: sessions and threads are 0."""
    spec = bundle.spec
    return EncoderInfo(
        dim=spec.dim if fixed is None or fixed.dim is None else fixed.dim,
        max_tokens=spec.max_tokens,
        prompts=dict(spec.prompts),
        default_prompt=spec.default_prompt if fixed is None or fixed.prompt is None else fixed.prompt or None,
        similarity=spec.similarity,
        fingerprint=spec.fingerprint,
        engine="onnxruntime",
        precision=graph.precision,
        layout=graph.layout,
        device=device,
        sessions=0,
        threads=0,
    )


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


def _outputs(bundle: Bundle, fixed: Fixed | None) -> list[str]:
    width = -1 if fixed is None else (fixed.dim or bundle.spec.dim)  # dim is a request parameter
    outputs = [(wire.EMBEDDING, "FP32", width)]
    if fixed is None:
        outputs += [(wire.TOKENS, "INT32", 1), (wire.TRUNCATED, "BOOL", 1), (wire.INFO, "STRING", 1)]
    return [
        f'output [ {{ name: "{name}" data_type: TYPE_{dtype} dims: [ {size} ] }} ]' for name, dtype, size in outputs
    ]


def _batching_lines(batching: Batching) -> list[str]:
    return [
        "dynamic_batching {",
        f"  max_queue_delay_microseconds: {batching.delay_us}",
        "  default_queue_policy {",
        "    timeout_action: REJECT",
        f"    default_timeout_microseconds: {batching.timeout_ms * 1000}",
        "    allow_timeout_override: true",
        f"    max_queue_size: {batching.max_queue}",
        "  }",
        "}",
    ]


def _warmup_texts(fixed: Fixed | None) -> Mapping[str, str]:
    # A model that refuses texts over its limit would refuse the long one, and Triton then the model.
    strict = fixed is not None and fixed.on_truncate == "error"
    return {name: text for name, text in WARMUP_TEXTS.items() if not (strict and name == "long")}


def _warmup_lines(texts: Mapping[str, str]) -> list[str]:
    # Batch size 1: a larger one would be that many requests of the same text.
    value = f'key: "{wire.TEXT}" value {{ data_type: TYPE_STRING dims: [ 1 ] input_data_file: "%s" }}'
    return [f'model_warmup [ {{ name: "{name}" batch_size: 1 inputs {{ {value % name} }} }} ]' for name in texts]


def _quoted(text: str) -> str:
    # JSON's escapes are a subset of those that protobuf's text format knows.
    return json.dumps(text, ensure_ascii=False)
