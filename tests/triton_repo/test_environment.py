"""The server's environment: which Python, what is in it, when it is built and when reused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest

from sentport.errors import SentportError
from triton_repo import environment
from triton_repo.environment import (
    REQUIREMENTS,
    Interpreter,
    ServerEnvironment,
    find_interpreter,
    gets_native,
    prepare_environment,
)

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class FakeBuild:
    """Stands in for the minutes of installing: leaves the manifest and the few files that are looked at."""

    def __init__(self) -> None:
        self.devices: list[object] = []
        self.error: Exception | None = None

    def __call__(self, folder: Path, interpreter: Interpreter, wanted: dict[str, object]) -> None:
        self.devices.append(wanted["device"])
        (folder / "half").write_text("built")
        time.sleep(0.1)
        if self.error:
            raise self.error
        (folder / environment.MANIFEST).write_text(json.dumps(wanted))


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> FakeBuild:
    """Replace the heavy layer's build, and name an interpreter that exists on every machine: this one."""
    fake = FakeBuild()
    monkeypatch.setattr(environment, "_build", fake)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = Interpreter(sys.executable, here, "of the test", "/nowhere/libpython.so", SUFFIX)
    monkeypatch.setattr(environment, "find_interpreter", lambda: interpreter)
    return fake


def test_no_suitable_python_names_the_container() -> None:
    with pytest.raises(SentportError, match=r"needs Python 3.11 or 3.12 .*`sentport serve BUNDLE --container 24.10`"):
        find_interpreter(["/nowhere/python3.11"])


def test_missing_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        environment, "_probe", lambda candidate: ("3.12", "3.12.1", "/x/python3.12", ".so", ["/nowhere"])
    )
    monkeypatch.setattr("triton_repo.environment.shutil.which", lambda name, path=None: None)
    with pytest.raises(SentportError, match=r"libpython3.12.so.1.0.*apt-get install libpython3.12"):
        find_interpreter(["python3.12"])


def test_the_interpreters_own_library_wins(tmp_path: Path) -> None:
    own = tmp_path / "libm.so.6"  # every Linux loader knows another one of this name
    assert environment._find_library(own.name, [str(tmp_path)]) != str(own)
    own.touch()
    assert environment._find_library(own.name, ["/nowhere", str(tmp_path)]) == str(own)


def test_unknown_device() -> None:
    with pytest.raises(SentportError, match=r"unknown device 'tpu'.*cpu, cuda"):
        prepare_environment(device="tpu")


def test_built_once_then_reused(build: FakeBuild, tmp_path: Path) -> None:
    first = prepare_environment(tmp_path / "env")
    assert prepare_environment(tmp_path / "env") == first
    assert build.devices == ["cpu"]
    prepare_environment(tmp_path / "env", "cuda")
    assert build.devices == ["cpu", "cuda"], "another requirement list must build again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env", "env.lock"]


def test_changed_source_costs_a_layer_only(build: FakeBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare_environment(tmp_path / "env")
    monkeypatch.setattr(environment, "_code_hash", lambda files: "another")
    second = prepare_environment(tmp_path / "env")
    assert build.devices == ["cpu"]
    assert first.bin.is_dir(), "a server that runs from the old layer keeps it"
    assert second.bin == tmp_path / "env" / "code" / "another" / "bin"


def install_kernels(site: Path, suffix: str, content: str) -> None:
    """A distribution ``sentport-native`` as pip leaves it."""
    files = ("sentport_native/__init__.py", f"sentport_native/_native{suffix}", "sentport_native/__init__.cpython.pyc")
    for name in (*files, "sentport_native-1.dist-info/METADATA", "sentport_native-1.dist-info/RECORD"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    (site / "sentport_native-1.dist-info" / "METADATA").write_text("Name: sentport-native\nVersion: 1\n")
    (site / "sentport_native-1.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in files))


def test_kernels_that_are_installed_here_go_along(
    build: FakeBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "site")
    layers = []
    for content in ("one", "other"):
        install_kernels(tmp_path / "site", SUFFIX, content)
        assert gets_native()
        made = prepare_environment(tmp_path / "env")
        layers.append(made.bin.parent)
        (packages,) = made.bin.parent.glob("lib/python3.*/site-packages")
        held = {path.name: path.read_text() for path in (packages / "sentport_native").iterdir()}
        assert held == {"__init__.py": content, f"_native{SUFFIX}": content}
    assert layers[0] != layers[1], "other kernels are another layer"
    assert build.devices == ["cpu"]


@pytest.mark.parametrize("fault", ["another Python's", "no module", "removed", "no record"])
def test_kernels_that_the_server_cannot_load_stay_out(
    build: FakeBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    site = tmp_path / "site"
    suffix = {"another Python's": ".cpython-27-x86_64-linux-gnu.so", "no module": ".txt"}.get(fault, SUFFIX)
    install_kernels(site, suffix, "")
    if fault == "removed":
        (site / "sentport_native" / f"_native{suffix}").unlink()
    elif fault == "no record":
        (site / "sentport_native-1.dist-info" / "RECORD").unlink()
    monkeypatch.syspath_prepend(site)
    assert not gets_native()
    assert not list(
        prepare_environment(tmp_path / "env").bin.parent.glob("lib/python3.*/site-packages/sentport_native")
    )


def test_default_folder_is_the_users_cache(build: FakeBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert re.fullmatch(r"server-[0-9a-f]{12}", prepare_environment().folder.relative_to(tmp_path / "sentport").name)


def test_failure_leaves_nothing_half_built(build: FakeBuild, tmp_path: Path) -> None:
    build.error = SentportError("could not install")
    with pytest.raises(SentportError, match="could not install"):
        prepare_environment(tmp_path / "env")
    assert [path.name for path in tmp_path.iterdir()] == ["env.lock"]


def test_leavings_of_a_killed_build_are_removed(build: FakeBuild, tmp_path: Path) -> None:
    (tmp_path / "env.partial-killed").mkdir()
    prepare_environment(tmp_path / "env")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env", "env.lock"]


def test_foreign_folder_is_refused(build: FakeBuild, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SentportError, match="is no server environment"):
        prepare_environment(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_two_builders_build_once(build: FakeBuild, tmp_path: Path) -> None:
    found: list[ServerEnvironment] = []
    builders = [threading.Thread(target=lambda: found.append(prepare_environment(tmp_path / "env"))) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert build.devices == ["cpu"]
    assert found == found[:1] * 3


def test_failed_installation_is_one_line_with_pips_words() -> None:
    code = "print('Looking'); print('ERROR: No matching distribution found for x'); print('hint'); raise SystemExit(1)"
    with pytest.raises(SentportError, match=r"^could not install: ERROR: No matching distribution found for x$"):
        environment._run([sys.executable, "-c", code], "install")


def test_variables_put_the_servers_python_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/cuda/lib")
    monkeypatch.setenv("PYTHONHOME", "/wrong")
    made = ServerEnvironment(
        Path("/e"), Path("/e/tree"), Path("/e/code/x/bin"), (Path("/e/libpython"), Path("/e/libs"))
    )
    variables = made.variables()
    assert variables["PATH"] == "/e/code/x/bin:/usr/bin"
    assert variables["LD_LIBRARY_PATH"] == "/e/libpython:/e/libs:/cuda/lib"
    assert "PYTHONHOME" not in variables


def test_same_versions_as_the_tested_set() -> None:
    constraints = ROOT / "constraints.txt"
    if not constraints.is_file():
        pytest.skip("not a checkout: there is no constraints.txt to compare with")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", constraints.read_text(), re.MULTILINE))
    for requirements in REQUIREMENTS.values():
        for name, version in (re.sub(r"\[.*\]", "", requirement).split("==") for requirement in requirements):
            if name != "numpy" and name in pinned:
                assert pinned[name] == version, f"{name} differs between the server and constraints.txt"


def test_real_environment_holds_sentport_and_no_torch(server_environment: ServerEnvironment) -> None:
    code = (
        "import importlib.util as u, json, numpy, onnxruntime, sentport, tokenizers, triton_repo;"
        "print(json.dumps([numpy.__version__, sentport.__file__, u.find_spec('torch') is None]))"
    )
    done = subprocess.run(
        [str(server_environment.bin / "python3"), "-c", code],
        cwd="/",
        env=server_environment.variables(),
        capture_output=True,
        check=True,
    )
    numpy_version, home, without_torch = json.loads(done.stdout)
    assert numpy_version.startswith("1.")
    assert Path(home).is_relative_to(server_environment.folder)
    assert without_torch


def test_real_environment_needs_no_network_again(
    server_environment: ServerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_build", lambda *arguments: pytest.fail("installed again"))
    assert prepare_environment(server_environment.folder).tree == server_environment.tree
