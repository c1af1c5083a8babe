"""Hardware facts, from files made for the purpose: what the kernel of the test machine says must not matter."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sentport import hardware

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux interfaces")

INTEL = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu sse2 avx avx2 avx512f avx512_vnni avx512_bf16 avx_vnni amx_bf16 amx_tile amx_int8

processor\t: 1
model name\t: second
flags\t\t: fpu
"""
# "avx512f" must not be read out of "avx512fp16", nor "avx2" out of "avx256".
LOOKALIKES = "model name\t: X\nflags\t\t: fpu avx avx256 avx512fp16 avx512_vnni2\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp bf16\n"


class Roots:
    """A procfs and a cgroup mount in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()

    def member_of(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def put(self, path: str, text: str) -> None:
        file = self.cgroup / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpuinfo(self, text: str) -> Path:
        (self.proc / "cpuinfo").write_text(text)
        return self.proc

    def quota(self) -> float | None:
        return hardware.cgroup_quota(self.proc, self.cgroup)

    def cores(self) -> int:
        return hardware.available_cores(self.proc, self.cgroup)


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path)


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("limit", "quota", "cores"),
    [
        ("max 100000", None, 16),
        ("400000 100000", 4.0, 4),
        ("250000 100000", 2.5, 2),
        ("50000 100000", 0.5, 1),
        ("9900000 100000", 99.0, 16),
        ("nonsense", None, 16),
        ("0 0", None, 16),
    ],
)
def test_v2_quota_is_rounded_down_but_never_to_zero(roots: Roots, limit: str, quota: float | None, cores: int) -> None:
    roots.member_of("0::/")
    roots.put("cpu.max", limit)
    assert roots.quota() == quota
    assert roots.cores() == cores


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(("inner", "outer", "cores"), [("max 100000", "300000 100000", 3), ("200000 100000", "8 1", 2)])
def test_the_tightest_quota_on_the_way_up_counts(roots: Roots, inner: str, outer: str, cores: int) -> None:
    roots.member_of("0::/user.slice/job")
    roots.put("user.slice/job/cpu.max", inner)
    roots.put("user.slice/cpu.max", outer)
    roots.put("other.slice/cpu.max", "100000 100000")
    assert roots.cores() == cores


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize("path", ["/docker/0123abcd", "/../sibling"])
def test_a_path_outside_the_mount_falls_back_to_the_mount_itself(roots: Roots, path: str) -> None:
    roots.member_of(f"0::{path}")
    roots.put("cpu.max", "500000 100000")
    (roots.cgroup.parent / "sibling").mkdir()
    (roots.cgroup.parent / "sibling" / "cpu.max").write_text("100000 100000\n")
    assert roots.cores() == 5


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_v1_quota(roots: Roots, mount: str) -> None:
    roots.member_of("4:memory:/job", "3:cpuset:/tight", f"2:{mount}:/job", "0::/")
    roots.put(f"{mount}/cpu.cfs_quota_us", "-1")
    roots.put(f"{mount}/cpu.cfs_period_us", "100000")
    assert roots.cores() == 16
    roots.put(f"{mount}/job/cpu.cfs_quota_us", "350000")
    roots.put(f"{mount}/job/cpu.cfs_period_us", "50000")
    assert roots.quota() == 7.0
    assert roots.cores() == 7


@pytest.mark.usefixtures("sixteen_cores")
def test_with_both_versions_mounted_the_tighter_one_counts(roots: Roots) -> None:
    roots.member_of("1:cpu:/", "0::/")
    roots.put("cpu/cpu.cfs_quota_us", "600000")
    roots.put("cpu/cpu.cfs_period_us", "100000")
    roots.put("unified/cpu.max", "200000 100000")
    assert roots.cores() == 2


@pytest.mark.usefixtures("sixteen_cores")
def test_without_any_file_affinity_alone_counts(tmp_path: Path) -> None:
    assert hardware.cgroup_quota(tmp_path / "none", tmp_path / "none") is None
    assert hardware.available_cores(tmp_path / "none", tmp_path / "none") == 16


@linux_only
def test_affinity_narrower_than_the_quota_counts(roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 7, 11})
    roots.member_of("0::/")
    roots.put("cpu.max", "800000 100000")
    assert hardware.affinity_cores() == 3
    assert roots.cores() == 3


@linux_only
def test_affinity_of_the_real_process() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert hardware.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert 1 <= hardware.available_cores() <= len(allowed)


def test_affinity_is_the_machine_where_there_is_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert hardware.affinity_cores() == 10
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert hardware.affinity_cores() == 1


def test_cpu_model_and_all_features(roots: Roots) -> None:
    proc = roots.cpuinfo(INTEL)
    assert hardware.cpu_model(proc) == "Intel(R) Xeon(R) Platinum 8480+"
    assert hardware.cpu_features(proc) == frozenset(hardware.CPU_FEATURES)


def test_flags_are_matched_whole(roots: Roots) -> None:
    assert hardware.cpu_features(roots.cpuinfo(LOOKALIKES)) == frozenset()


def test_what_the_kernel_does_not_say_is_unknown(roots: Roots) -> None:
    assert hardware.cpu_features(roots.proc) is None  # no cpuinfo at all
    assert hardware.cpu_model(roots.proc) == "unknown"
    proc = roots.cpuinfo(ARM)
    assert hardware.cpu_features(proc) is None
    assert hardware.cpu_model(proc) == "unknown"


class FakeCuda:
    """The few entry points of libcuda that are used, with one H100 and one device that gives no name."""

    def __init__(self, init: int = 0, devices: int = 2) -> None:
        self.init, self.devices = init, devices

    def cuDriverGetVersion(self, out: object) -> int:
        out._obj.value = 12040  # type: ignore[attr-defined]
        return 0

    def cuInit(self, _flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, out: object) -> int:
        out._obj.value = self.devices  # type: ignore[attr-defined]
        return 0

    def cuDeviceGet(self, out: object, index: int) -> int:
        out._obj.value = index  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetName(self, buffer: ctypes.Array[ctypes.c_char], _size: int, device: ctypes.c_int) -> int:
        buffer.value = b"NVIDIA H100"
        return 0 if device.value == 0 else 1

    def cuDeviceGetAttribute(self, out: object, attribute: int, _device: ctypes.c_int) -> int:
        out._obj.value = {75: 9, 76: 0}[attribute]  # type: ignore[attr-defined]
        return 0


@linux_only
def test_cuda_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeCuda())
    driver = hardware.cuda_driver()
    assert driver.devices == ("NVIDIA H100 (compute capability 9.0)", "device 1 (unknown)")
    assert (driver.version, driver.reason) == ((12, 4), "")
    assert hardware.cuda_devices() == driver.devices


@linux_only
@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (FakeCuda(init=100), "error 100 (no device)"),
        (FakeCuda(init=803), "error 803"),
        (FakeCuda(devices=0), "sees no device"),
    ],
)
def test_a_driver_without_a_device_says_why(fake: FakeCuda, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: fake)
    driver = hardware.cuda_driver()
    assert driver.devices == ()
    assert reason in driver.reason


@linux_only
def test_no_driver_is_no_device() -> None:
    driver = hardware.cuda_driver("libcuda-that-is-not-there.so.1")
    assert driver == hardware.CudaDriver((), None, driver.reason)
    assert "libcuda-that-is-not-there.so.1" in driver.reason


def test_cuda_is_unknown_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    driver = hardware.cuda_driver()
    assert driver.devices is None
    assert "unknown" in driver.reason
    assert hardware.cuda_devices() == ()


def write_elf(path: Path, needed: tuple[str, ...], run_path: str = "", order: str = "<") -> Path:
    """A 64-bit ELF file with nothing but a dynamic section, mapped at an address that is not its offset."""
    base, strings = 0x10000, b"\0"
    entries = []
    for tag, text in [*((1, name) for name in needed), *([(29, run_path)] if run_path else [])]:
        entries.append((tag, len(strings)))
        strings += text.encode() + b"\0"
    strings_at, dynamic_at = 64 + 2 * 56, 64 + 2 * 56 + len(strings)
    entries += [(5, base + strings_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack(order + "qQ", *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    identity = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    header = identity + struct.pack(order + "HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack(order + "IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096)
    at = dynamic_at
    pointer = struct.pack(order + "IIQQQQQQ", 2, 6, at, base + at, base + at, len(dynamic), len(dynamic), 8)
    path.write_bytes(header + load + pointer + strings + dynamic)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
def test_needed_libraries_are_read_in_order(tmp_path: Path, order: str) -> None:
    library = write_elf(tmp_path / "lib.so", ("libone.so.1", "libtwo.so"), "$ORIGIN/../x:/opt/y:${ORIGIN}", order)
    needed, run_path = hardware.needed_libraries(library)
    assert needed == ["libone.so.1", "libtwo.so"]
    assert run_path == [tmp_path / "../x", Path("/opt/y"), tmp_path]


@linux_only
def test_only_libraries_that_cannot_be_found_are_missing(tmp_path: Path) -> None:
    names = ("libc.so.6", "libsentport-absent.so.9", "libbeside.so.1", "libextra.so.2")
    library = write_elf(tmp_path / "lib.so", names, "$ORIGIN")
    (tmp_path / "libbeside.so.1").touch()
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / "libextra.so.2").touch()
    assert hardware.missing_libraries(library) == ["libsentport-absent.so.9", "libextra.so.2"]
    assert hardware.missing_libraries(library, [tmp_path / "wheel"]) == ["libsentport-absent.so.9"]


def test_a_library_missing_one_level_down_is_the_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError("libinner.so.2: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", load)
    library = write_elf(tmp_path / "lib.so", ("libouter.so.1", "libother.so.1"))
    assert hardware.missing_libraries(library) == ["libinner.so.2"]


@pytest.mark.parametrize("content", [b"", b"not a library at all", b"\x7fELF\x01" + bytes(60), b"\x7fELF\x02\x01"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lib.so").write_bytes(content)
    with pytest.raises(ValueError, match=r"lib\.so"):
        hardware.needed_libraries(tmp_path / "lib.so")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    whole = write_elf(tmp_path / "lib.so", ("libone.so.1",)).read_bytes()
    (tmp_path / "lib.so").write_bytes(whole[:100])
    with pytest.raises(ValueError, match="damaged"):
        hardware.needed_libraries(tmp_path / "lib.so")


@linux_only
def test_onnxruntimes_real_cuda_provider_asks_for_cuda() -> None:
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("onnxruntime is not installed")
    library = Path(spec.origin).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not library.is_file():
        pytest.skip("this onnxruntime is built without CUDA")
    needed, _ = hardware.needed_libraries(library)
    assert any(name.startswith("libcudart.so.") for name in needed)
    assert "libc.so.6" in needed
    missing = hardware.missing_libraries(library)
    assert "libc.so.6" not in missing
    if hardware.cuda_driver().reason.startswith("no NVIDIA driver"):
        assert "libcuda.so.1" in missing
