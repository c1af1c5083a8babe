"""A bundle becomes a Triton model repository.

```
OUT/NAME/config.pbtxt       queue, batching, warm-up, and what the model is opened with
OUT/NAME/warmup/...         warm-up inputs in Triton's format
OUT/NAME/1/model.py         a few lines that call the sentport of the server's environment
OUT/NAME/1/bundle/          the bundle, hard-linked where the file system allows it
OUT/Dockerfile ...          the release's container with sentport in its Python; not for engine native
OUT/grafana.json            a dashboard of what the server tells about itself
```

Forms ``ragged`` and ``plan`` have three such folders, see ``form_ragged`` and ``form_plan``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sentport.errors import SentportError
from sentport.files import folder_written_aside
from triton_repo import config, form_plan, form_ragged, form_text, settings, wire
from triton_repo.config import CONFIG_FILE, ModelFolder
from triton_repo.environment import COMMON, REQUIREMENTS
from triton_repo.releases import CONTAINER_FILES, NEWEST, Release, release_named, write_container_files
from triton_repo.wanted import Wanted, chosen

MODEL_FILE = "model.py"
WARMUP_FOLDER = "warmup"
DASHBOARD = "grafana.json"

_TEMPLATES = Path(__file__).with_name("templates")


def write_repository(wanted: Wanted, out: Path, *, force: bool = False) -> Path:
    """Write a model repository with one encoder; it appears only when it is complete.

    Args:
        wanted: What it is asked for.
        out: The repository's folder.
        force: Replace an existing repository, all of whose models this function wrote.

    Returns:
        ``out``.

    Raises:
        SentportError: When the bundle cannot be read, something asked for cannot be had, or ``out`` exists.
    """
    release = release_named(NEWEST)
    models = planned(wanted, release)
    _check_out(out, wanted.bundle, force)
    with folder_written_aside(out) as folder:
        for model, content in models.items():
            _write_model(folder / model, content)
        if wanted.engine != "native":  # the image has no kernels of it
            requirements = REQUIREMENTS["cuda" if wanted.device == "cuda" else "cpu"]
            write_container_files(folder, release, requirements if wanted.form == "text" else COMMON)
        shutil.copyfile(_TEMPLATES / DASHBOARD, folder / DASHBOARD)
    return out


def planned(wanted: Wanted, release: Release) -> Mapping[str, ModelFolder]:
    """The models that ``write_repository`` writes, by name; it refuses what that refuses, and writes nothing.

    Raises:
        SentportError: When the bundle cannot be read, or something asked for cannot be had.
    """
    choice = chosen(wanted)
    if wanted.form == "ragged":
        return form_ragged.models(choice, release)
    return form_plan.models(choice) if wanted.form == "plan" else form_text.models(choice, wanted.fixed)


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
    if source.endswith(".safetensors"):  # engine native maps it: written over in place, it would change under a server
        shutil.copy2(source, target)
        return
    try:
        os.link(Path(source).resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
