"""What a model repository is asked for, and the graph of the bundle that this comes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sentport.bundle import read_bundle
from sentport.errors import SentportError
from triton_repo import form_plan, form_ragged, form_text
from triton_repo.config import MAX_BATCH, NAME, Batching
from triton_repo.form_text import Choice
from triton_repo.requests import Fixed
from triton_repo.settings import ENGINES

FORMS = ("text", "ragged", "plan")
DEVICES = {"text": form_text.DEVICES, "ragged": form_ragged.DEVICES, "plan": form_plan.DEVICES}

# A folder has this name, and a step's a few characters more.
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a model repository is asked for.

    Attributes:
        bundle: The bundle folder; its files are checked by hash.
        name: The model's name on the server; None = the bundle folder's name.
        form: ``text``, ``ragged`` or ``plan``.
        device: ``cpu`` or ``cuda``, and ``tensorrt`` for form ``ragged``; the model does not load where it cannot run
            there. Form ``plan`` runs on ``cuda`` alone.
        engine: What runs form ``text``: ``onnxruntime``, or on ``cpu`` also ``native``, which loads where the server's
            Python has ``sentport_native``.
        layout: ``padded``, ``packed`` or ``auto``, as for ``sentport.Encoder``; form ``ragged`` and engine ``native``
            are packed, ``plan`` padded.
        precision: ``auto`` takes fp32 where there is one, as for ``sentport.Encoder``.
        threads: Compute threads in all; None = the cores that the server may use.
        batching: How requests wait and are put together; None = the form's defaults.
        fixed: Write the cacheable variant of form ``text``: fixed prompt, dim and truncation, one output, no request
            parameters.
    """

    bundle: Path
    name: str | None = None
    form: str = "text"
    device: str = "cpu"
    engine: str = "onnxruntime"
    layout: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    batching: Batching | None = None
    fixed: Fixed | None = None

    @property
    def model(self) -> str:
        """The model's name."""
        return self.bundle.resolve().name.removesuffix(".bundle") if self.name is None else self.name


def chosen(wanted: Wanted) -> Choice:
    """What is served, and how.

    Raises:
        SentportError: When the bundle cannot be read, or something asked for cannot be had.
    """
    _check(wanted)
    bundle = read_bundle(wanted.bundle)
    bundle.tokenizer_file()
    if wanted.form == "ragged":
        provider = "cpu" if wanted.device == "cpu" else "cuda"
        graph = bundle.select("packed", wanted.precision, provider, form_ragged.FLAVOURS)
    elif wanted.form == "plan":
        graph = form_plan.graph_with_plan(bundle, wanted.precision)
    else:
        graph = form_text.graph_of(bundle, wanted.engine, wanted.layout, wanted.precision, wanted.device)
    bundle.graph_file(graph)
    batching = wanted.batching or Batching(max_batch=MAX_BATCH[wanted.form])
    return Choice(wanted.model, bundle, graph, wanted.device, wanted.threads, batching, wanted.engine)


def _check(wanted: Wanted) -> None:
    form, device = wanted.form, wanted.device
    if form not in FORMS:
        raise SentportError(f"form {form!r} is unknown; expected one of {', '.join(FORMS)}")
    if device not in DEVICES[form]:
        raise SentportError(f"device {device!r} is unknown to form {form}; expected one of {', '.join(DEVICES[form])}")
    if wanted.threads is not None and wanted.threads < 1:
        raise SentportError(f"threads is {wanted.threads}; expected a whole number from 1, or none for all cores")
    if form != "text" and wanted.fixed is not None:
        raise SentportError("the cacheable variant exists of form text alone; leave the cache out, or use form text")
    _check_engine(wanted)
    if not NAME.fullmatch(wanted.model) or len(wanted.model) > _LONGEST_NAME:
        raise SentportError(
            f"{wanted.model[:80]!r} cannot be a model's name (at most {_LONGEST_NAME} letters, digits, '_', '-', '.'); "
            "give one with --name"
        )


def _check_engine(wanted: Wanted) -> None:
    native = wanted.engine == "native"
    if wanted.engine not in ENGINES:
        raise SentportError(f"engine {wanted.engine!r} is unknown to a server; expected one of {', '.join(ENGINES)}")
    if native and (wanted.form, wanted.device) != ("text", "cpu"):
        raise SentportError(
            f"engine native serves form text on device cpu, not form {wanted.form} on {wanted.device}; use onnxruntime"
        )
    own = {"ragged": "packed", "plan": "padded"}.get(wanted.form, "packed" if native else wanted.layout)
    if wanted.layout not in ("auto", own):
        runs, other = ("engine native", "engine onnxruntime") if native else (f"form {wanted.form}", "form text")
        raise SentportError(f"layout is {wanted.layout!r}, but {runs} runs {own} graphs; leave it out, or use {other}")
