"""``sentport doctor``: every finding that decides something is provoked, and the real machine is examined once."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentport import hardware
from sentport.cli import doctor, main

NO_DEVICE = hardware.CudaDriver((), None, "no NVIDIA driver: made up")
ONE_DEVICE = hardware.CudaDriver(("NVIDIA H100 (compute capability 9.0)",), (13, 0))
HEAVY = ("numpy", "onnxruntime", "torch", "tokenizers", "transformers")

needs_onnxruntime = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")

Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Make wheels look uninstalled, to metadata as well as to the import system."""

    def hide_wheels(*names: str) -> None:
        version, find = metadata.version, find_spec

        def visible_version(name: str) -> str:
            if name in names:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(metadata, "version", visible_version)
        monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in names else find(name))

    return hide_wheels


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a wheel's metadata, and nothing else of it, on the import path."""
    monkeypatch.syspath_prepend(tmp_path)

    def install_metadata(name: str, version: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return install_metadata


def found(findings: list[doctor.Finding], name: str) -> doctor.Finding:
    return next(finding for finding in findings if finding.name == name)


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    """The findings of ``sentport doctor --json`` by name, from what it just printed."""
    return {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}


def test_the_real_machine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"can_encode", "findings"}
    assert code == (0 if answer["can_encode"] else 1)
    for finding in answer["findings"]:
        assert list(finding) == ["name", "status", "detail", "cost", "fix"]
        assert finding["status"] in ("ok", "missing", "problem")
        assert finding["detail"]
        assert finding["status"] != "ok" or not (finding["cost"] or finding["fix"])
    names = [finding["name"] for finding in answer["findings"]]
    assert len(set(names)) == len(names)
    assert {"Python", "sentport", "numpy", "tokenizers", "CUDA device", "cores", "CPU", "TensorRT"} <= set(names)
    numpy = next(finding for finding in answer["findings"] if finding["name"] == "numpy")
    assert numpy["detail"] == metadata.version("numpy")


def test_the_command_line_prints_only_the_report() -> None:
    done = subprocess.run([sys.executable, "-m", "sentport", "doctor"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    *rows, verdict = done.stdout.splitlines()
    assert verdict.startswith("encoding can run here: ")
    assert "\x1b" not in done.stdout
    heads = [row for row in rows if not row.startswith(" ")]
    assert all(head.split()[0] in ("ok", "missing", "problem") for head in heads)
    assert all(row.strip().startswith(("cost: ", "fix:  ")) for row in rows if row.startswith(" "))


def test_quiet_keeps_problems_and_the_verdict(capsys: pytest.CaptureFixture[str], hide: Hide) -> None:
    hide("torch", "transformers", "onnxruntime", "onnxruntime-gpu")
    assert main(["doctor", "-q"]) == 1
    *rows, verdict = capsys.readouterr().out.splitlines()
    assert not [row for row in rows if row.startswith(("ok", "missing"))]
    assert verdict.startswith("encoding cannot run here")


def test_the_columns_are_aligned() -> None:
    rows = doctor._report(
        [doctor.Finding("a", "ok", "DETAIL"), doctor.Finding("longer name", "problem", "DETAIL", "time", "pip")]
    )
    assert rows[0].index("DETAIL") == rows[1].index("DETAIL")
    assert rows[2:] == ["         cost: time", "         fix:  pip"]


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = f"import sys, sentport.cli.doctor; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("wheel", ["numpy", "tokenizers"])
def test_without_a_core_wheel_nothing_can_be_encoded(
    wheel: str, hide: Hide, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(wheel)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"pip install {wheel}\n" in out
    assert out.splitlines()[-1] == f"encoding cannot run here: no usable {wheel}"


def test_a_core_wheel_that_does_not_import_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError("\n  a dtype has the wrong size\nand more")

    monkeypatch.setattr(doctor, "import_module", fail)
    finding = doctor._core_wheel("numpy")
    assert finding.status == "problem"
    assert finding.detail.endswith("importing it fails: a dtype has the wrong size")


def test_no_engine_at_all_is_the_answer_no(hide: Hide, capsys: pytest.CaptureFixture[str]) -> None:
    hide("torch", "onnxruntime", "onnxruntime-gpu")  # transformers alone runs nothing
    assert main(["doctor", "--json"]) == 1
    findings = report(capsys)
    assert findings["onnxruntime wheel"]["status"] == "missing"
    assert "sentport[gpu]" in findings["onnxruntime wheel"]["fix"]
    assert findings["torch"]["fix"] == "pip install 'sentport[export]'"
    assert not [name for name in findings if name.endswith("ExecutionProvider")]


@needs_onnxruntime
def test_torch_is_optional_beside_onnxruntime(hide: Hide, capsys: pytest.CaptureFixture[str]) -> None:
    hide("torch", "transformers")
    assert main(["doctor", "--json"]) == 0
    findings = report(capsys)
    assert findings["torch"]["status"] == findings["transformers"]["status"] == "missing"
    assert findings["CPUExecutionProvider"]["status"] == "ok"


@pytest.mark.parametrize(
    ("sound", "answer"),
    [
        ({"Python", "numpy", "tokenizers", "CPUExecutionProvider"}, True),
        ({"Python", "numpy", "tokenizers", "torch", "transformers"}, True),
        ({"Python", "numpy", "tokenizers", "torch"}, False),
        ({"Python", "numpy", "tokenizers", "CUDAExecutionProvider"}, False),
        ({"Python", "tokenizers", "CPUExecutionProvider", "torch", "transformers"}, False),
        ({"numpy", "tokenizers", "CPUExecutionProvider"}, False),
    ],
)
def test_what_encoding_needs(sound: set[str], answer: bool) -> None:
    every = ("Python", "numpy", "tokenizers", "CPUExecutionProvider", "CUDAExecutionProvider", "torch", "transformers")
    findings = [doctor.Finding(name, "ok" if name in sound else "problem", "x") for name in every]
    assert doctor.can_encode(findings) is answer


@pytest.mark.parametrize(
    ("wheels", "kept"),
    [
        (("onnxruntime", "onnxruntime-gpu"), "onnxruntime-gpu"),
        (("onnxruntime", "onnxruntime-openvino"), "onnxruntime-openvino"),
    ],
)
def test_clashing_wheels(wheels: tuple[str, ...], kept: str, install: Callable[[str, str], None], hide: Hide) -> None:
    hide(*set(doctor._ONNXRUNTIME_WHEELS) - set(wheels))
    for wheel in wheels:
        install(wheel, "1.20.0")
    finding = doctor._onnxruntime_wheels()
    assert finding.status == "problem"
    assert all(f"{wheel} 1.20.0" in finding.detail for wheel in wheels)
    removal, _, installation = finding.fix.partition(" && ")
    assert set(removal.split()) >= {"uninstall", "-y", *wheels}
    assert installation == f"pip install {kept}"


def test_one_wheel_is_no_clash(install: Callable[[str, str], None], hide: Hide) -> None:
    hide(*set(doctor._ONNXRUNTIME_WHEELS) - {"onnxruntime"})
    install("onnxruntime", "1.20.0")
    assert doctor._onnxruntime_wheels() == doctor.Finding("onnxruntime wheel", "ok", "onnxruntime 1.20.0")


@pytest.mark.parametrize(("version", "status"), [((3, 10, 9), "problem"), ((3, 11, 0), "ok"), ((4, 0, 0), "ok")])
def test_python_version(version: tuple[int, ...], status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    assert doctor._python().status == status


def test_the_probe_is_a_valid_model() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(doctor._PROBE_MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (8, 13)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    assert model.SerializeToString() == doctor._PROBE_MODEL


@needs_onnxruntime
def test_the_cpu_provider_really_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    findings = doctor._providers(NO_DEVICE)
    assert found(findings, "CPUExecutionProvider").status == "ok"
    assert list(tmp_path.iterdir()) == []  # the profiles are gone
    assert capfd.readouterr() == ("", "")
    for finding in findings:
        assert finding.name not in doctor._CUDA_PROVIDERS or finding.detail == "not tried: there is no CUDA device"


@needs_onnxruntime
@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "TensorrtExecutionProvider"])
def test_a_provider_that_is_only_registered_is_found_out(
    provider: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if hardware.cuda_devices():
        pytest.skip("here it may really run")
    runtime = import_module("onnxruntime")
    if provider not in runtime.get_available_providers():
        pytest.skip(f"this onnxruntime has no {provider}")
    monkeypatch.setattr(doctor, "_missing_of", lambda _name: [])
    runtime.set_default_logger_severity(4)
    try:
        finding = doctor._probe(runtime, provider, ONE_DEVICE)
    finally:
        runtime.set_default_logger_severity(2)
    assert finding.status == "problem"
    assert "CPUExecutionProvider ran the probe node" in finding.detail or "cannot run a node" in finding.detail
    assert capfd.readouterr() == ("", "")


def test_a_provider_whose_library_lacks_others_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_missing_of", lambda _name: ["libcublas.so.13", "libnvinfer.so.10"])
    finding = doctor._probe(import_module("types"), "TensorrtExecutionProvider", ONE_DEVICE)
    assert finding.status == "missing"
    assert "libcublas.so.13, libnvinfer.so.10" in finding.detail
    assert "onnxruntime-gpu[cuda,cudnn]" in finding.fix
    assert "sentport[tensorrt]" in finding.fix


class FakeRuntime(SimpleNamespace):
    """An onnxruntime that records its log severities and whose sessions write a profile made for the purpose."""

    def __init__(self, *nodes: tuple[str, str]) -> None:
        self.severities: list[int] = []
        self.events = [{"cat": "Session", "name": "model_run", "args": {}}]
        self.events += [{"cat": "Node", "name": "n", "args": {"provider": p, "op_name": op}} for p, op in nodes]
        super().__init__(SessionOptions=SimpleNamespace, set_default_logger_severity=self.severities.append)

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "AzureExecutionProvider"]

    def preload_dlls(self) -> None:
        sys.stdout.write("Failed to load libcublas: this must not reach the report")

    def InferenceSession(
        self, _model: bytes, options: SimpleNamespace, providers: list[str], enable_fallback: int
    ) -> SimpleNamespace:
        assert (options.enable_profiling, options.log_severity_level, enable_fallback) == (True, 4, 0)
        profile = Path(f"{options.profile_file_prefix}.json")
        profile.write_text(json.dumps(self.events))
        return SimpleNamespace(run=lambda *_: None, end_profiling=lambda: str(profile))


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ([("CUDAExecutionProvider", "Add")], "ok"),
        ([("CUDAExecutionProvider", "MemcpyFromHost"), ("CPUExecutionProvider", "Add")], "problem"),
        ([], "problem"),
    ],
)
def test_the_profile_decides(
    nodes: list[tuple[str, str]], status: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = FakeRuntime(*nodes)
    monkeypatch.setattr(doctor, "find_spec", lambda _name: object())
    monkeypatch.setattr(doctor, "import_module", lambda _name: runtime)
    monkeypatch.setattr(doctor, "_missing_of", lambda _name: [])
    findings = doctor._providers(ONE_DEVICE)
    assert [(finding.name, finding.status) for finding in findings] == [("CUDAExecutionProvider", status)]
    assert runtime.severities == [4, 2]
    assert capsys.readouterr().out == ""


def test_the_remains_of_a_clash_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _name: object())
    monkeypatch.setattr(doctor, "import_module", lambda _name: SimpleNamespace())  # a folder left without __init__.py
    (finding,) = doctor._providers(NO_DEVICE)
    assert (finding.name, finding.status) == ("onnxruntime", "problem")
    assert "get_available_providers" in finding.detail


@pytest.mark.parametrize(
    ("driver", "status"),
    [
        (ONE_DEVICE, "ok"),
        (NO_DEVICE, "missing"),
        (hardware.CudaDriver((), (12, 2), "cuInit gives error 803"), "problem"),
        (hardware.CudaDriver(None, None, "unknown: made up"), "missing"),
    ],
)
def test_cuda_device(driver: hardware.CudaDriver, status: str) -> None:
    finding = doctor._cuda_device(driver)
    assert finding.status == status
    assert (driver.reason or "NVIDIA H100") in finding.detail


@pytest.fixture
def provider_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An onnxruntime package that holds nothing but an empty CUDA provider library."""
    package = tmp_path / "onnxruntime"
    library = package / "capi" / "libonnxruntime_providers_cuda.so"
    library.parent.mkdir(parents=True)
    library.touch()
    spec = SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr(doctor, "find_spec", lambda _name: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    return library


@pytest.mark.usefixtures("provider_library")
@pytest.mark.parametrize(("driver", "status"), [(ONE_DEVICE, "problem"), (NO_DEVICE, "missing")])
def test_missing_cuda_libraries_are_named(
    driver: hardware.CudaDriver, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "needed_libraries", lambda _path: (["libcudart.so.13"], []))
    monkeypatch.setattr(hardware, "missing_libraries", lambda _path, _folders: ["libcublas.so.13", "libcuda.so.1"])
    (finding,) = doctor._cuda_libraries(driver)
    assert (finding.status, finding.detail) == (status, "not found: libcublas.so.13, libcuda.so.1")
    assert finding.fix == "install the NVIDIA driver; pip install 'onnxruntime-gpu[cuda,cudnn]'"


def test_libraries_of_nvidias_wheels_are_looked_at(provider_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = provider_library.parents[2] / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    monkeypatch.setattr(hardware, "missing_libraries", lambda _path, folders: [str(folder) for folder in folders])
    assert doctor._missing_of(provider_library.name) == [str(wheel)]


@pytest.mark.usefixtures("provider_library")
@pytest.mark.parametrize(("driver_major", "status"), [(12, "problem"), (13, "ok"), (14, "ok")])
def test_a_driver_older_than_the_wheels_cuda(driver_major: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "needed_libraries", lambda _path: (["libc.so.6", "libcudart.so.13"], []))
    monkeypatch.setattr(hardware, "missing_libraries", lambda _path, _folders: [])
    (finding,) = doctor._cuda_libraries(hardware.CudaDriver(("x",), (driver_major, 4)))
    assert finding.status == status


def test_a_damaged_or_absent_cuda_provider(provider_library: Path) -> None:
    assert doctor._cuda_libraries(ONE_DEVICE)[0].status == "problem"  # an empty file
    provider_library.unlink()
    (finding,) = doctor._cuda_libraries(ONE_DEVICE)
    assert (finding.status, finding.detail) == ("missing", "this onnxruntime is built without CUDA")


@pytest.mark.parametrize(
    ("quota", "status", "text"), [(None, "ok", "none"), (2.5, "ok", "2.5"), (0.5, "problem", "0.5")]
)
def test_cores(quota: float | None, status: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(hardware, "cgroup_quota", lambda *_: quota)
    monkeypatch.setattr(hardware, "affinity_cores", lambda: 3)
    finding = doctor._cores()
    assert finding.status == status
    assert f"affinity 3, cgroup quota {text})" in finding.detail
    assert finding.detail.startswith("3 " if quota is None else f"{max(1, int(quota))} ")


def test_cpu_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_features", lambda: frozenset({"AVX2"}))
    findings = doctor._cpu_features()
    assert [finding.name for finding in findings if finding.status == "ok"] == ["AVX2"]
    assert all(finding.cost for finding in findings if finding.status == "missing")
    assert len(findings) == len(hardware.CPU_FEATURES)
    monkeypatch.setattr(hardware, "cpu_features", lambda: None)
    assert "unknown" in doctor._cpu_features()[0].detail


def test_triton_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Hide, install: Callable[[str, str], None]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    install("nvidia-pytriton", "0.7.0")
    assert doctor._triton_server().detail == "nvidia-pytriton 0.7.0"
    hide("nvidia-pytriton")
    missing = doctor._triton_server()
    assert missing.status == "missing"
    assert "sentport serve" in missing.fix
    (tmp_path / "tritonserver").touch(mode=0o755)
    assert doctor._triton_server().detail == f"tritonserver at {tmp_path / 'tritonserver'}"


def test_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hide: Hide) -> None:
    hide("tensorrt", "tensorrt_rtx_bindings")
    assert [finding.status for finding in doctor._tensorrt()] == ["missing", "missing"]
    monkeypatch.setattr(doctor, "find_spec", find_spec)
    (tmp_path / "tensorrt").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    if (spec := find_spec("tensorrt")) is None or spec.origin is None:
        assert doctor._tensorrt()[0].status == "missing"  # a plain folder is not the package
    (tmp_path / "tensorrt" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)  # the import system forgets what it saw
    assert doctor._tensorrt()[0].status == "ok"
