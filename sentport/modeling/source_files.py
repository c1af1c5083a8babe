"""The files of a checkpoint folder: where they lie, which generation of sentence-transformers wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentport.errors import CheckpointError

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


def read_json(path: Path, *, missing_ok: bool = False) -> Any:
    """A JSON file's content; None where it may be missing and is."""
    if missing_ok and not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error


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
        raise CheckpointError(f"{folder / 'modules.json'} starts with {found}; expected a Transformer module")
    return inside(folder, modules[0])


def inside(folder: Path, entry: Mapping[str, Any]) -> Path:
    """A module's folder, which must lie inside of the checkpoint."""
    path = folder / str(entry.get("path", ""))
    if ".." in path.relative_to(folder).parts:
        raise CheckpointError(f"modules.json of {folder} names {entry['path']!r}, which lies outside of it")
    return path


def read_settings(where: Path) -> dict[str, Any]:
    """The transformer module's settings, from whichever file name its generation used."""
    found = next((where / name for name in _SETTINGS_FILES if (where / name).is_file()), None)
    return {} if found is None else dict(read_json(found))


def refuse_unknown_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Settings that would change vectors and are not carried out must not be lost."""
    for key, value in settings.items():
        if key in ("max_seq_length", "do_lower_case"):
            continue
        harmless = _HARMLESS.get(key, ())
        if harmless is not None and value not in harmless and value not in (None, {}):
            raise CheckpointError(f"sentence_bert_config.json of {folder} has {key}={value!r}: not supported yet")
