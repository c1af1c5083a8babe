"""Why sentport-native cannot be built here: one line and exit code 1; where it can, nothing and 0. Needs no package."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path


def obstacle() -> str | None:
    """What stands in the way, and the way out."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"its kernels are for x86-64, and this is {platform.machine()}"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++")):
        return "there is no C++ compiler (Debian: apt-get install g++)"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return f"Python's headers are missing (Debian: apt-get install python{sys.version_info[0]}-dev)"
    return None


if __name__ == "__main__":
    found = obstacle()
    if found is not None:
        print(f"engine native is left out: {found}")  # noqa: T201
    sys.exit(found is not None)
