"""The Triton server's own Python environment, built once and reused, also without network.

The server's python backend needs numpy < 2, which nothing else here does, so it gets an environment of its own. That
environment has two layers: a heavy one (server, numpy, ONNX Runtime, tokenizers: some 350 MB), and for each state of
our code a small one on top of it (sentport itself, and the kernels of engine ``native`` where they are installed here),
so that a changed line costs a copy and not an install.

```
server-<key>/                 bin lib ...   the heavy layer, a virtual environment
    server.json               what it holds and what it was made for
    libpython/                the one shared library that the server's stub links
    code/<hash of code>/      bin/python3 lib ...   the light layer: what the stub takes for its environment
```
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp

from sentport.errors import SentportError
from triton_repo.releases import NEWEST, RELEASES
from triton_repo.source import native_files, source_files

_log = logging.getLogger(__name__)

MANIFEST = "server.json"
FORMAT = 1
PYTHONS = ("3.11", "3.12")
SERVER = f"nvidia-pytriton=={RELEASES[NEWEST].pytriton}"
# The set that is tested, apart from the project's constraints because of numpy: with 2.x the stub dies on the first
# string. The same ONNX Runtime and tokenizers as there, so that server and library give the same vectors.
COMMON = ("numpy==1.26.4", "tokenizers==0.23.3")
REQUIREMENTS = {
    "cpu": (*COMMON, "onnxruntime==1.31.1"),
    "cuda": (*COMMON, "onnxruntime-gpu[cuda,cudnn]==1.31.1"),
}
CONTAINER = f"sentport serve BUNDLE --container {NEWEST}"

_PROBE = (
    "import json, sys, sysconfig as s; print(json.dumps(["
    "'%d.%d' % sys.version_info[:2], sys.version.split()[0], getattr(sys, '_base_executable', '') or sys.executable,"
    "s.get_config_var('EXT_SUFFIX'), [s.get_config_var('LIBDIR') or '', sys.base_prefix + '/lib', "
    "'%s/%s' % (s.get_config_var('LIBDIR'), s.get_config_var('MULTIARCH'))]]))"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python that the server can embed."""

    executable: str
    python: str  # major.minor, as in the name of its library
    version: str
    library: str  # the shared library, with its folder
    suffix: str  # what the names of its extension modules end with


@dataclass(frozen=True)
class ServerEnvironment:
    """A finished environment: where the server is and how it must be started."""

    folder: Path
    tree: Path  # the ``tritonserver`` folder: bin, backends
    bin: Path  # holds the ``python3`` that the stub takes, with sentport in it
    libraries: tuple[Path, ...]

    @property
    def executable(self) -> Path:
        """The server's binary."""
        return self.tree / "bin" / "tritonserver"

    def variables(self) -> dict[str, str]:
        """The environment variables for the server: ours, with the stub's Python and libraries put first."""
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
        variables["PATH"] = f"{self.bin}{os.pathsep}{variables.get('PATH', os.defpath)}"
        libraries = [str(folder) for folder in self.libraries]
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *filter(None, [variables.get("LD_LIBRARY_PATH")])])
        return variables


def prepare_environment(folder: Path | None = None, device: str = "cpu") -> ServerEnvironment:
    """Find the server's environment, or build it: the heavy layer once, the light one for each state of the source.

    Args:
        folder: Where it lies or shall lie; by default a folder of the user's cache, named after what it holds.
        device: ``cpu`` or ``cuda``: which build of ONNX Runtime it gets.

    Raises:
        SentportError: No Python that the server can embed, an installation that failed, or a folder that holds
            something else.
    """
    if device not in REQUIREMENTS:
        raise SentportError(f"unknown device {device!r} for the server; expected one of {', '.join(REQUIREMENTS)}")
    interpreter = find_interpreter()
    wanted = _wanted(interpreter, device)
    base = (folder or _cache() / f"server-{_digest(json.dumps(wanted).encode())}").expanduser().absolute()
    files = _code_files(interpreter)
    code = base / "code" / _code_hash(files)
    # Looked at before the lock is taken, so that a finished environment may lie in a folder that cannot be written.
    if not (_holds(base, wanted) and code.is_dir()):
        _complete(base, code, files, interpreter, wanted)
    packages = _site_packages(base, interpreter)
    return ServerEnvironment(
        folder=base,
        tree=packages / "pytriton" / "tritonserver",
        bin=code / "bin",
        libraries=(base / "libpython", packages / "nvidia_pytriton.libs"),
    )


def gets_native() -> bool:
    """Whether the environment gets the kernels of engine ``native``: they are installed here, and fit its Python.

    Raises:
        SentportError: No Python that the server can embed.
    """
    return bool(native_files(find_interpreter().suffix))


def _complete(
    base: Path, code: Path, files: Mapping[str, Path], interpreter: Interpreter, wanted: dict[str, object]
) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    with _lock(base):
        if not _holds(base, wanted):
            _refuse_foreign(base)
            with _aside(base) as partial:
                _build(partial, interpreter, wanted)
        if not code.is_dir():
            with _aside(code) as partial:
                _build_code(partial, files, interpreter)


def find_interpreter(candidates: list[str] | None = None) -> Interpreter:
    """The first Python of a version that the server embeds whose shared library is found: ours, then those on PATH.

    Raises:
        SentportError: naming the package that brings the library, or the container where no such Python exists.
    """
    without_library: list[str] = []
    for candidate in _candidates() if candidates is None else candidates:
        found = _probe(candidate)
        if found is None or found[0] not in PYTHONS:
            continue
        python, version, executable, suffix, folders = found
        library = _find_library(f"libpython{python}.so.1.0", folders)
        if library is not None:
            return Interpreter(executable, python, version, library, suffix)
        without_library.append(python)
    if without_library:
        python = without_library[0]
        raise SentportError(
            f"Python {python} is here without its shared library libpython{python}.so.1.0, which the Triton server "
            f"loads; install it (Debian, Ubuntu: `apt-get install libpython{python}`), or run a container, as "
            f"`{CONTAINER}` prints it"
        )
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SentportError(
        f"the Triton server from PyPI needs Python {' or '.join(PYTHONS)} and its shared library, found Python {here}; "
        f"install libpython{PYTHONS[0]} with python{PYTHONS[0]}, or run a container, as `{CONTAINER}` prints it"
    )


def _candidates() -> list[str]:
    names = [sys.executable]
    names += [path for path in (shutil.which(f"python{python}") for python in PYTHONS) if path]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in PYTHONS:
        names += sorted(map(str, pyenv.glob(f"{python}.*/bin/python{python}")), reverse=True)
    return [*names, *(f"/usr/bin/python{python}" for python in PYTHONS)]


def _probe(executable: str) -> tuple[str, str, str, str, list[str]] | None:
    try:
        # A pyenv shim can stand for a version that is not installed: it fails, and is passed over.
        answer = subprocess.run([executable, "-I", "-c", _PROBE], capture_output=True, timeout=30, check=True)
        python, version, base, suffix, folders = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return python, version, base, suffix, folders


def _find_library(name: str, folders: list[str]) -> str | None:
    # The interpreter's own comes first: another build's library with this one's standard library is a gamble.
    own = [str(Path(folder) / name) for folder in folders]
    loader = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if loader:
        listing = subprocess.run([loader, "-p"], capture_output=True, text=True, check=False).stdout
        own += re.findall(rf"^\s*{re.escape(name)} .*=> (\S+)$", listing, re.MULTILINE)
    return next((path for path in own if Path(path).is_file()), None)


def _wanted(interpreter: Interpreter, device: str) -> dict[str, object]:
    seen = asdict(interpreter)
    del seen["suffix"]  # the version decides it
    return {
        "format": FORMAT,
        "interpreter": seen,
        "device": device,
        "requirements": [SERVER, *REQUIREMENTS[device]],
    }


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentport"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _holds(base: Path, wanted: dict[str, object]) -> bool:
    try:
        manifest = json.loads((base / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(manifest.get(name) == value for name, value in wanted.items())


def _refuse_foreign(base: Path) -> None:
    if base.is_file() or (base.is_dir() and not (base / MANIFEST).is_file() and any(base.iterdir())):
        raise SentportError(f"{base} exists and is no server environment of sentport; give an empty or a new folder")


@contextmanager
def _lock(base: Path) -> Iterator[None]:
    # The lock belongs to the open file, so it ends with the process however that ends. The file itself stays: removing
    # it would let a third process lock another file of the same name.
    with base.with_name(f"{base.name}.lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is building %s: waiting for it", base)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A folder to build in, which takes the place of ``target`` when all went well and is removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # The lock is ours: whatever lies here half-built belongs to a process that was killed.
    for stale in target.parent.glob(f"{target.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o755)
        if target.exists():
            replaced = target.rename(target.with_name(f"{target.name}.partial-replaced"))
            partial.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(folder: Path, interpreter: Interpreter, wanted: dict[str, object]) -> None:
    _log.info("building the server's environment once (Python %s, for %s)", interpreter.version, wanted["device"])
    pip = _create(folder, interpreter)
    # Without its dependencies: of the wheel only the server is used, not the library around it.
    for packages in ([SERVER, "--no-deps"], REQUIREMENTS[str(wanted["device"])]):
        _log.info("installing %s", ", ".join(package for package in packages if not package.startswith("-")))
        _run(
            [*pip, "install", "--quiet", "--no-input", "--only-binary=:all:", *packages],
            "install the server's packages (the first time only, from a package index)",
        )
    packages_folder = _site_packages(folder, interpreter)
    tree = packages_folder / "pytriton" / "tritonserver"
    stub = "triton_python_backend_stub"
    shutil.copy2(tree / "python_backend_stubs" / interpreter.python / stub, tree / "backends" / "python" / stub)
    # A link in a folder of its own: the library's folder may hold others, which the server must not be given.
    (folder / "libpython").mkdir()
    (folder / "libpython" / Path(interpreter.library).name).symlink_to(interpreter.library)
    for script in (folder / "bin").iterdir():  # they name the folder that this one is renamed from
        if not script.name.startswith("python"):
            script.unlink()
    found = metadata.distributions(path=[str(packages_folder)])
    versions = {each.metadata["Name"]: each.version for each in found}
    manifest = {**wanted, "packages": dict(sorted(versions.items()))}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _create(folder: Path, interpreter: Interpreter) -> list[str]:
    """Make an empty virtual environment and return the command that is pip for it."""
    python = str(folder / "bin" / "python3")
    try:
        ours = tuple(int(part) for part in metadata.version("pip").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        ours = (0, 0)
    what = f"make an environment (Debian, Ubuntu: `apt-get install python{interpreter.python}-venv`)"
    if ours >= (22, 3):  # the first that installs into another environment
        _run([interpreter.executable, "-m", "venv", "--without-pip", str(folder)], what)
        return [sys.executable, "-m", "pip", "--python", python]
    _run([interpreter.executable, "-m", "venv", str(folder)], what)
    return [python, "-m", "pip"]


def _run(command: list[str], what: str) -> None:
    _log.debug("%s", " ".join(command))
    # A group of its own: pip starts a second process, which would go on writing after an interruption.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    with process:
        try:
            output, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line or "error" in line] or lines
        raise SentportError(f"could not {what}: {errors[-1] if errors else f'exit code {process.returncode}'}")


def _code_files(interpreter: Interpreter) -> dict[str, Path]:
    """What the light layer holds, by its path in the folder of packages."""
    return source_files() | native_files(interpreter.suffix)


def _code_hash(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _build_code(folder: Path, files: Mapping[str, Path], interpreter: Interpreter) -> None:
    _run([interpreter.executable, "-m", "venv", "--without-pip", str(folder)], "make an environment")
    packages = _site_packages(folder, interpreter)
    for name, file in files.items():
        target = packages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    # From site-packages of code/<hash> up to the heavy layer's own, as a relative path that survives a rename.
    (packages / "server.pth").write_text(f"../../../../../lib/python{interpreter.python}/site-packages\n", "utf-8")


def _site_packages(folder: Path, interpreter: Interpreter) -> Path:
    return folder / "lib" / f"python{interpreter.python}" / "site-packages"
