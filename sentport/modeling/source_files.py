"""The files of a checkpoint folder: where they lie, which generation of sentence-transformers wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sentport.errors import CheckpointError

_CARRIED_OUT = ("max_seq_length", "do_lower_case")
# Settings of sentence_bert_config.json that change nothing here at these values.
_HARMLESS: Mapping[str, tuple[Any, ...] | None] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_output_name": ("token_embeddings",),
    "message_format": None,
    "processing_kwargs": ({}, None),
    "query_length": (None,),
    "document_length": (None,),
    "unpad_inputs": None,  # a matter of speed, not of vectors
    "backend": None,
}
# sentence-transformers reads the first of these that exists.
_SETTINGS_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


def read_json(path: Path, *, missing_ok: bool = False, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """A JSON file's content, which must be of a kind; None where it may be missing and is."""
    if missing_ok and not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); save or download it again") from error
    if not isinstance(content, kind):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; expected a {kind.__name__}")
    return content


def read_modules(folder: Path) -> list[dict[str, Any]] | None:
    """The entries of modules.json; None for a plain checkpoint, which has none.

    Raises:
        CheckpointError: When it is damaged.
    """
    file = folder / "modules.json"
    modules: list[dict[str, Any]] | None = read_json(file, missing_ok=True, kind=list)
    for entry in modules or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise CheckpointError(f"{file} has the entry {entry!r}; expected a module with its type and path")
    return modules


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of one line."""
    return (str(error).splitlines() or [""])[0]


def module_type(entry: Mapping[str, Any]) -> str:
    """``Pooling`` for any of the module paths that sentence-transformers has used."""
    package, _, name = str(entry["type"]).rpartition(".")
    return name if package.startswith("sentence_transformers.") else str(entry["type"])


def transformer_folder(folder: Path, modules: list[dict[str, Any]] | None) -> Path:
    """The folder of the transformer: modules.json's first module."""
    if modules is None:
        return folder
    if not modules or module_type(modules[0]) != "Transformer":
        found = modules[0]["type"] if modules else "nothing"
        raise CheckpointError(
            f"{folder / 'modules.json'} starts with {found}; expected sentence-transformers' Transformer module "
            "(--trust-remote-code is for auto_map, not for module classes of a checkpoint's own)"
        )
    return inside(folder, modules[0])


def module_folders(modules: list[dict[str, Any]]) -> list[str]:
    """The modules' folders as modules.json names them; ``""`` is the checkpoint's own."""
    return [str(entry.get("path", "")) for entry in modules]


def inside(folder: Path, entry: Mapping[str, Any]) -> Path:
    """A module's folder, which must lie inside of the checkpoint."""
    path = PurePosixPath(str(entry.get("path", "")))
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"modules.json of {folder} names {entry['path']!r}, which lies outside of it")
    return folder / path


@dataclass(frozen=True)
class Settings:
    """The settings of the transformer module.

    Attributes:
        file: Name of the file they are from.
        max_seq_length: As saved, unchecked; None where nothing is.
        lower_case: Texts are put into lower case before all else.
    """

    file: str = _SETTINGS_FILES[0]
    max_seq_length: Any = None
    lower_case: bool = False


def read_settings(where: Path) -> Settings:
    """The transformer module's settings, from whichever file its generation of sentence-transformers used.

    Raises:
        CheckpointError: For one that would change vectors and is not carried out here.
    """
    found = None
    for name in _SETTINGS_FILES:
        values = read_json(where / name, missing_ok=True)
        if values:  # an empty one sends sentence-transformers on to the next name
            found = name
            break
    if found is None:
        return Settings()
    for key, value in values.items():
        harmless = _HARMLESS.get(key, ())
        if key not in _CARRIED_OUT and harmless is not None and value not in (*harmless, None, {}):
            raise CheckpointError(
                f"{where / found} has {key}={value!r}, which is not carried out here; "
                f"known: {', '.join((*_CARRIED_OUT, *_HARMLESS))}"
            )
    return Settings(found, values.get("max_seq_length"), bool(values.get("do_lower_case")))
