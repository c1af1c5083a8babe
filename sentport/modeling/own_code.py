"""Code that a checkpoint brings along: it runs only when that is asked for, and only code that cannot change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentport.errors import CheckpointError
from sentport.modeling.hub import Source
from sentport.modeling.source_files import read_json

_USED = {"AutoConfig", "AutoModel", "AutoTokenizer", "AutoProcessor"}  # others are for other tasks
_ELSEWHERE = "--"  # "owner/name--file.Class" is code of another repository


def own_code(source: Source, where: Path, trusted: bool) -> list[str]:
    """The classes that a checkpoint's files take from code of its own; empty where there are none.

    Args:
        source: The checkpoint.
        where: The folder of its transformer.
        trusted: Whether the user has asked to run such code.

    Raises:
        CheckpointError: When there are some and they may not run.
    """
    named = sorted(set(_named(where)))
    if not named:
        return []
    what = f"{source.name} needs code of its own ({', '.join(named)}: auto_map in its config)"
    if any(_ELSEWHERE in name for name in named):
        raise CheckpointError(
            f"{what}, which lies in another repository and may change there; copy it into a local folder of the "
            "checkpoint and name it in auto_map without the repository"
        )
    commit = "" if source.commit is None else f" --revision {source.commit}"
    if not trusted:
        raise CheckpointError(
            f"{what}; remote code stays off: read it in {where}, then add --trust-remote-code{commit}, "
            "or take auto_map out if the architecture is one of transformers' own"
        )
    if not source.pinned:
        raise CheckpointError(f"{what}; --trust-remote-code runs code of a full commit only: add{commit}")
    return named


def _named(where: Path) -> Iterator[str]:
    for file in ("config.json", "tokenizer_config.json"):
        values: dict[str, Any] = read_json(where / file, missing_ok=True) or {}
        found = values.get("auto_map") or {}
        named = found if isinstance(found, dict) else {"AutoTokenizer": found}  # older tokenizers save a list
        for kind in _USED & set(named):
            classes = named[kind]
            yield from (str(name) for name in (classes if isinstance(classes, list) else [classes]) if name)
