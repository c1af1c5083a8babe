"""A bundle becomes a Triton model repository.

```
OUT/NAME/config.pbtxt       queue, batching, warm-up, and what the model is opened with
OUT/NAME/warmup/...         warm-up inputs in Triton's format
OUT/NAME/1/model.py         a few lines that call the sentport of the server's environment
OUT/NAME/1/bundle/          the bundle, hard-linked where the file system allows it
OUT/Dockerfile ...          the release's container with sentport in its Python
OUT/grafana.json            a dashboard of what the server tells about itself
```

Forms ``ragged`` and ``plan`` have three such folders, see ``form_ragged`` and ``form_plan``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sentport.bundle import read_bundle
from sentport.errors import SentportError
from sentport.files import folder_written_aside
from triton_repo import config, form_plan, form_ragged, form_text, settings, wire
from triton_repo.config import CONFIG_FILE, MAX_BATCH, NAME, Batching, ModelFolder
from triton_repo.environment import COMMON, REQUIREMENTS
from triton_repo.form_text import Choice
from triton_repo.releases import CONTAINER_FILES, NEWEST, Release, release_named, write_container_files
from triton_repo.requests import Fixed

FORMS = ("text", "ragged", "plan")
DEVICES = {"text": form_text.DEVICES, "ragged": form_ragged.DEVICES, "plan": form_plan.DEVICES}
MODEL_FILE = "model.py"
WARMUP_FOLDER = "warmup"
DASHBOARD = "grafana.json"

# A folder has this name, and a step's a few characters more.
_LONGEST_NAME = 200
_TEMPLATES = Path(__file__).with_name("templates")


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
    """Write a model repository with one encoder; it appears only when it is complete.

    Args:
        bundle: The bundle folder; its files are checked by hash.
        out: The repository's folder.
        name: The model's name on the server; None = the bundle folder's name.
        form: ``text``, ``ragged`` or ``plan``.
        device: ``cpu`` or ``cuda``, and ``tensorrt`` for form ``ragged``; the model does not load where it cannot run
            there. Form ``plan`` runs on ``cuda`` alone.
        layout: ``padded``, ``packed`` or ``auto``, as for ``sentport.Encoder``; form ``ragged`` is packed, ``plan``
            padded.
        precision: ``auto`` takes fp32 where there is one, as for ``sentport.Encoder``.
        threads: Compute threads in all; None = the cores that the server may use.
        batching: How requests wait and are put together; None = the form's defaults.
        fixed: Write the cacheable variant of form ``text``: fixed prompt, dim and truncation, one output, no request
            parameters.
        force: Replace an existing repository, all of whose models this function wrote.

    Returns:
        ``out``.

    Raises:
        SentportError: When the bundle cannot be read, something asked for cannot be had, or ``out`` exists.
    """
    release = release_named(NEWEST)
    models = planned(bundle, name, form, device, layout, precision, threads, batching, fixed, release)
    _check_out(out, bundle, force)
    with folder_written_aside(out) as folder:
        for model, content in models.items():
            _write_model(folder / model, content)
        requirements = REQUIREMENTS["cuda" if device == "cuda" else "cpu"] if form == "text" else COMMON
        write_container_files(folder, release, requirements)
        shutil.copyfile(_TEMPLATES / DASHBOARD, folder / DASHBOARD)
    return out


def planned(
    bundle: Path,
    name: str | None,
    form: str,
    device: str,
    layout: str,
    precision: str,
    threads: int | None,
    batching: Batching | None,
    fixed: Fixed | None,
    release: Release,
) -> Mapping[str, ModelFolder]:
    """The models that ``write_repository`` writes, by name; it refuses what that refuses, and writes nothing.

    Raises:
        SentportError: When the bundle cannot be read, or something asked for cannot be had.
    """
    _check_choices(form, device, layout, threads, fixed)
    chosen = model_name(bundle) if name is None else name
    if not NAME.fullmatch(chosen) or len(chosen) > _LONGEST_NAME:
        raise SentportError(
            f"{chosen[:80]!r} cannot be a model's name (at most {_LONGEST_NAME} letters, digits, '_', '-', '.'); "
            "give one with --name"
        )
    choice = _choice(bundle, chosen, form, device, layout, precision, threads, batching)
    return _models(choice, form, fixed, release)


def model_name(bundle: Path) -> str:
    """The name that a bundle's model gets when none is given."""
    return bundle.resolve().name.removesuffix(".bundle")


def _check_choices(form: str, device: str, layout: str, threads: int | None, fixed: Fixed | None) -> None:
    if form not in FORMS:
        raise SentportError(f"form {form!r} is unknown; expected one of {', '.join(FORMS)}")
    if device not in DEVICES[form]:
        raise SentportError(f"device {device!r} is unknown to form {form}; expected one of {', '.join(DEVICES[form])}")
    if threads is not None and threads < 1:
        raise SentportError(f"threads is {threads}; expected a whole number from 1, or none for all cores")
    if form != "text" and fixed is not None:
        raise SentportError("the cacheable variant exists of form text alone; leave the cache out, or use form text")
    own = {"ragged": "packed", "plan": "padded"}.get(form, layout)
    if layout not in ("auto", own):
        raise SentportError(f"layout is {layout!r}, but form {form} runs {own} graphs; leave it out, or use form text")


def _models(choice: Choice, form: str, fixed: Fixed | None, release: Release) -> Mapping[str, ModelFolder]:
    if form == "ragged":
        return form_ragged.models(choice, release)
    return form_plan.models(choice) if form == "plan" else form_text.models(choice, fixed)


def _choice(
    bundle: Path,
    name: str,
    form: str,
    device: str,
    layout: str,
    precision: str,
    threads: int | None,
    batching: Batching | None,
) -> Choice:
    opened = read_bundle(bundle)
    opened.tokenizer_file()
    provider = "cpu" if device == "cpu" else "cuda"
    if form == "ragged":
        graph = opened.select("packed", precision, provider, form_ragged.FLAVOURS)
    elif form == "plan":
        graph = form_plan.graph_with_plan(opened, precision)
    else:
        graph = opened.select(layout, precision, provider)
    opened.graph_file(graph)
    return Choice(name, opened, graph, device, threads, batching or Batching(max_batch=MAX_BATCH[form]))


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
    beside = (*CONTAINER_FILES, DASHBOARD)
    children = [child for child in out.iterdir() if child.name not in beside] if out.is_dir() else []
    if not out.is_dir() or not all((child / CONFIG_FILE).is_file() for child in children):
        raise SentportError(f"{out} is not a model repository, so --force does not replace it; name another folder")
    foreign = sorted(child.name for child in children if not is_ours(child))
    if foreign:
        raise SentportError(
            f"{out} holds {', '.join(foreign)}, which `sentport repository` did not write, so --force does not replace "
            "it; name another folder"
        )


def is_ours(model: Path) -> bool:
    """Whether ``write_repository`` wrote the folder of a model."""
    text = (model / CONFIG_FILE).read_text(encoding="utf-8", errors="replace")
    return any(config.read_parameter(text, key) is not None for key in (wire.ENCODER, settings.PART_OF))


def _write_model(folder: Path, model: ModelFolder) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(model.config, encoding="utf-8")
    write_version(version, model.files, python='backend: "python"' in model.config)
    if model.warmup:
        (folder / WARMUP_FOLDER).mkdir()
    for name, data in model.warmup.items():
        (folder / WARMUP_FOLDER / name).write_bytes(data)


def write_version(version: Path, files: Mapping[str, Path], *, python: bool) -> None:
    """Fill a version folder: files and folders by their path in it, and our ``model.py`` where the model is one."""
    if python:
        shutil.copyfile(_TEMPLATES / MODEL_FILE, version / MODEL_FILE)
    for name, source in files.items():
        target = version / name
        target.parent.mkdir(exist_ok=True)
        # Links are safe since nobody edits a finished bundle, and a bundle of gigabytes costs nothing.
        if source.is_dir():
            shutil.copytree(source, target, copy_function=_link_or_copy)
        else:
            _link_or_copy(str(source), str(target))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(Path(source).resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
