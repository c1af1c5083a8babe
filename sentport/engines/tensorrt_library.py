"""The two libraries that build and run TensorRT plans, behind one name: their Python interfaces have one shape."""

from __future__ import annotations

import logging
import re
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from sentport.errors import EngineError

logger = logging.getLogger(__name__)

# Said of every int64 input, though that is what our graphs have and what the engine feeds.
_INT64_REMARK = re.compile(r"Make sure input \S+ has Int64 binding")
_OLDEST_MAJOR = 10  # the first whose networks may be strongly typed


class Library(NamedTuple):
    """How a library is called, imported and installed.

    Attributes:
        title: Its name for users.
        modules: Imported in this order; the last one is the interface.
        extra: Of sentport, that installs it.
    """

    title: str
    modules: tuple[str, ...]
    extra: str


LIBRARIES = {
    "trt": Library("TensorRT", ("tensorrt",), "tensorrt"),
    # The bindings find the library only once the package that carries it has been imported.
    "rtx": Library("TensorRT for RTX", ("tensorrt_rtx_libs", "tensorrt_rtx_bindings"), "tensorrt-rtx"),
}


def load_library(builder: str) -> Any:
    """The Python interface of builder ``trt`` or ``rtx``.

    Raises:
        EngineError: When the builder is unknown, not installed, does not load, or is too old.
    """
    if builder not in LIBRARIES:
        raise EngineError(f"builder {builder!r} is unknown; known: {', '.join(LIBRARIES)}")
    library = LIBRARIES[builder]
    try:
        trt = [import_module(name) for name in library.modules][-1]
    except ModuleNotFoundError as error:
        raise EngineError(
            f"builder {builder} needs {library.title}, whose module {error.name} is not installed: "
            f"pip install 'sentport[{library.extra}]'"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:  # the bindings without the library beside them
        raise EngineError(f"{library.title} is installed but does not load: {_first_line(error)}") from error
    if builder == "trt" and int(trt.__version__.split(".")[0]) < _OLDEST_MAJOR:
        raise EngineError(
            f"TensorRT {trt.__version__} is installed; {_OLDEST_MAJOR} or newer is needed, whose networks keep types"
        )
    return trt


@cache
def log_of(trt: Any) -> Any:
    """The library's logger, one for the process, since the library keeps the first; ``take()`` gives its warnings."""

    class Log(trt.ILogger):  # type: ignore[misc]  # a class of the library that was picked
        def __init__(self) -> None:
            super().__init__()
            self._lines: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            logger.debug("%s: %s", severity.name, message)
            serious = severity in (self.WARNING, self.ERROR, self.INTERNAL_ERROR)
            if serious and not _INT64_REMARK.search(message):
                self._lines.append(f"{severity.name.lower()}: {' '.join(message.split())}")

        def take(self) -> tuple[str, ...]:
            """Warnings and errors since the last call."""
            taken, self._lines = tuple(self._lines), []
            return taken

    return Log()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
