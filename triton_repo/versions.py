"""A new bundle under the name of a model that is being served.

A version is a folder more; Triton loads it beside the old one, sends new requests there when it is ready, and unloads
the old one after its last request. What must not happen unseen is that the vectors of one name change their space.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentport.bundle import Bundle, GraphRecord, read_bundle
from sentport.errors import BundleError, SentportError
from sentport.files import file_written_aside, folder_written_aside
from triton_repo import config, form_ragged, form_text, settings, wire
from triton_repo.config import CONFIG_FILE, Batching
from triton_repo.form_text import Choice
from triton_repo.releases import NEWEST, release_named
from triton_repo.repository import is_ours, write_version


@dataclass(frozen=True, slots=True)
class Added:
    """A version that was added.

    Attributes:
        model: The model that has it, the one to load: of form ``ragged`` the one with the graph.
        version: Its number.
    """

    model: str
    version: int


def add_version(bundle: Path, repository: Path, name: str, *, other_space: bool = False) -> Added:
    """Add a bundle as the newest version of a model; a server that loads the model again serves it.

    Args:
        bundle: The bundle. It needs a graph of the layout and precision that are being served.
        repository: The model repository.
        name: The model's name in it.
        other_space: Allow a bundle with another fingerprint (form ``text`` only). Whoever stored vectors of the old
            one can compare none of them with the new ones.

    Raises:
        SentportError: When the model is not there or not ours, or the bundle does not fit it.
    """
    folder = repository / name
    if not (folder / CONFIG_FILE).is_file() or not is_ours(folder):
        raise SentportError(f"{repository} has no model {name!r} that `sentport repository` wrote")
    text = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    told = config.read_parameter(text, wire.ENCODER)
    if told is None or config.read_parameter(text, settings.PART_OF) is not None:
        raise SentportError(f"{name!r} is a step of another model; add the version to that one")
    served = json.loads(told)
    if served["engine"] == "tensorrt":
        raise SentportError(f"{name!r} is of form plan, whose profiles are its plan's alone; write a repository anew")
    ragged = 'platform: "ensemble"' in text
    opened, graph = _fitting(bundle, served, ragged)
    if opened.spec.fingerprint != served["fingerprint"]:
        _check_other_space(bundle, opened, served, text, ragged, other_space)
        choice = Choice(name, opened, graph, served["device"], None, Batching(), served["engine"])
        text = config.with_parameter(text, wire.ENCODER, form_text.described(choice.info))
    if ragged:
        return _write(repository / form_ragged.graph_model(name), form_ragged.graph_files(opened, graph), None)
    return _write(folder, {settings.BUNDLE_FOLDER: opened.path}, text)


def _fitting(bundle: Path, served: dict[str, Any], ragged: bool) -> tuple[Bundle, GraphRecord]:
    opened = read_bundle(bundle)
    opened.tokenizer_file()
    if ragged:
        provider = "cpu" if served["device"] == "cpu" else "cuda"
        graph = opened.select("packed", served["precision"], provider, form_ragged.FLAVOURS)
        form_ragged.check_graph(graph, served["device"], release_named(NEWEST))
    else:
        asked = (served["engine"], served["layout"], served["precision"], served["device"])
        graph = form_text.graph_of(opened, *asked)
    opened.graph_file(graph)
    return opened, graph


def _check_other_space(
    bundle: Path, opened: Bundle, served: dict[str, Any], text: str, ragged: bool, allowed: bool
) -> None:
    found, expected = opened.spec.fingerprint[:12], served["fingerprint"][:12]
    if ragged or config.read_parameter(text, "fixed_on_truncate") is not None:
        kind = "form ragged" if ragged else "the cacheable variant"
        raise BundleError(
            f"{bundle} has fingerprint {found}…, the model that is served {expected}…: {kind} cannot be swapped for "
            "another space; write a repository under another name"
        )
    if not allowed:
        raise BundleError(
            f"{bundle} has fingerprint {found}…, the model that is served {expected}…: their vectors cannot be "
            "compared; serve it under another name, or allow it with --other-space"
        )


def _write(model: Path, files: dict[str, Path], text: str | None) -> Added:
    version = 1 + max((int(path.name) for path in model.iterdir() if path.name.isdecimal()), default=0)
    with folder_written_aside(model / str(version)) as folder:
        write_version(folder, files, python=text is not None)
    if text is not None:
        with file_written_aside(model / CONFIG_FILE) as aside:
            aside.write_text(text, encoding="utf-8")
    return Added(model.name, version)
