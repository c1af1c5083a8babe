"""TOML tables to frozen dataclasses: each field by name and type, everything else refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from sentport.errors import SentportError

Table = TypeVar("Table")

_PLAIN = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


class RecipeError(SentportError):
    """A recipe says something that cannot be done; the message names the field."""


def read_table(kind: type[Table], values: object, where: str = "") -> Table:
    """The dataclass ``kind`` from a TOML table.

    Args:
        kind: A dataclass of plain types, enums, tuples of them, other dataclasses, and unions of dataclasses that each
            have another ``kind``.
        values: The table.
        where: Name of the table, for messages; empty for the whole file.

    Raises:
        RecipeError: For a field that is unknown, missing or of another type, and for what the dataclass itself refuses.
    """
    if not isinstance(values, Mapping):
        raise RecipeError(f"{where} is {values!r}; expected a table")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise RecipeError(f"{_path(where, name)} is unknown{nearest(name, known)}")
    hints = get_type_hints(kind)
    read = {name: _read(hints[name], value, _path(where, name)) for name, value in values.items()}
    for name, field in known.items():
        if name not in read and field.default is MISSING and field.default_factory is MISSING:
            raise RecipeError(f"{_path(where, name)} is missing; expected {_expected(hints[name])}")
    try:
        return kind(**read)
    except RecipeError as error:  # the dataclass knows its fields, not where it stands
        raise RecipeError(f"{where}: {error}" if where else str(error)) from error


def _read(hint: Any, value: object, where: str) -> Any:
    options = [option for option in get_args(hint) if option is not type(None)] if _is_union(hint) else [hint]
    if len(options) > 1:
        return _read_one_of(options, value, where)
    (hint,) = options
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise RecipeError(f"{where} is {value!r}; expected {_expected(hint)}")
        return tuple(_read(get_args(hint)[0], one, f"{where}[{place}]") for place, one in enumerate(value))
    if is_dataclass(hint):
        return read_table(hint, value, where)  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        names = [member.value for member in hint]
        if value not in names:
            raise RecipeError(f"{where} is {value!r}{nearest(str(value), names)}")
        return hint(value)
    if hint is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    if type(value) is not hint or hint is float:
        raise RecipeError(f"{where} is {value!r}; expected {_expected(hint)}")
    return value


def _read_one_of(options: list[type], value: object, where: str) -> Any:
    """One of several dataclasses, told apart by the table's ``kind``."""
    kinds = {option.kind: option for option in options}  # type: ignore[attr-defined]
    if not isinstance(value, Mapping) or "kind" not in value:
        raise RecipeError(f"{_path(where, 'kind')} is missing; expected one of {', '.join(kinds)}")
    name = value["kind"]
    if name not in kinds:
        raise RecipeError(f"{_path(where, 'kind')} is {name!r}{nearest(str(name), kinds)}")
    return read_table(kinds[name], {key: held for key, held in value.items() if key != "kind"}, where)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _expected(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list, each {_expected(get_args(hint)[0])}"
    if _is_union(hint):
        return _expected(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(member.value for member in hint)}"
    return _PLAIN.get(hint, "a table")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, and all."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return f"{hint} expected one of {', '.join(known)}"


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
