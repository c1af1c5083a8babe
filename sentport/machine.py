"""What is set for one machine and never belongs into a bundle: options of ONNX Runtime's providers, and what may stray.

A TOML file, named by ``$SENTPORT_MACHINE`` or ``~/.config/sentport/machine.toml``::

    [onnxruntime]
    cpu_nodes = "refuse"            # nodes that stay on the CPU beside a GPU: report (default) or refuse

    [onnxruntime.cuda]              # options of CUDAExecutionProvider, by their own names
    gpu_mem_limit = 8589934592

    [onnxruntime.tensorrt]          # options of TensorrtExecutionProvider
    trt_engine_cache_enable = true
    trt_engine_cache_path = "/var/cache/sentport"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentport.errors import SentportError

VARIABLE = "SENTPORT_MACHINE"
_DEFAULT = Path("~/.config/sentport/machine.toml")
_PROVIDERS = ("cuda", "tensorrt")
_CPU_NODES = ("report", "refuse")
# They would change numbers behind the precision that was asked for, which the graph itself has.
_REFUSED = ("use_tf32", "trt_fp16_enable", "trt_bf16_enable", "trt_int8_enable")


@dataclass(frozen=True)
class Machine:
    """What the file says.

    Attributes:
        providers: Options of ONNX Runtime's providers, by ``cuda`` and ``tensorrt``.
        refuse_cpu_nodes: Whether a graph that leaves any node on the CPU is an error on a GPU.
    """

    providers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refuse_cpu_nodes: bool = False


def read_machine() -> Machine:
    """The machine's options; the defaults where there is no file.

    Raises:
        SentportError: When a named file is not there, or holds something unknown.
    """
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else _DEFAULT.expanduser()
    if not path.is_file():
        if named:
            raise SentportError(f"{VARIABLE} names {path}, which is not there; make it, or unset the variable")
        return Machine()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SentportError(f"{path} is not TOML ({error})") from None
    return _parse(path, values)


def _parse(path: Path, values: Mapping[str, Any]) -> Machine:
    _refuse_unknown(path, "", values, ("onnxruntime",))
    table = values.get("onnxruntime", {})
    _refuse_unknown(path, "onnxruntime.", table, ("cpu_nodes", *_PROVIDERS))
    cpu_nodes = table.get("cpu_nodes", "report")
    if cpu_nodes not in _CPU_NODES:
        raise SentportError(f"{path}: cpu_nodes is {cpu_nodes!r}; expected one of {', '.join(_CPU_NODES)}")
    providers = {}
    for name in _PROVIDERS:
        options = table.get(name, {})
        _refuse_unknown(path, f"onnxruntime.{name}.", options, None)
        held = [option for option in _REFUSED if option in options]
        if held:
            raise SentportError(f"{path}: {held[0]} would change the precision, which the graph decides; leave it out")
        providers[name] = {option: _text(path, option, value) for option, value in options.items()}
    return Machine(providers, cpu_nodes == "refuse")


def _refuse_unknown(path: Path, where: str, table: Any, known: tuple[str, ...] | None) -> None:
    if not isinstance(table, dict):
        raise SentportError(f"{path}: {where.rstrip('.')} is {table!r}; expected a table")
    if known is None:  # options of a provider, which it knows itself
        return
    unknown = sorted(table.keys() - {*known})
    if unknown:
        raise SentportError(f"{path}: {where}{unknown[0]} is unknown; known: {', '.join(known)}")


def _text(path: Path, option: str, value: Any) -> str:
    """As ONNX Runtime takes all its options."""
    if not isinstance(value, str | int | float):
        raise SentportError(f"{path}: {option} is {value!r}; expected a number, true, false or text")
    return str(int(value)) if isinstance(value, bool) else str(value)
