"""What this machine offers: cores that may really be used, CPU features, CUDA devices, libraries and versions.

Standard library only, so that the command line can ask before anything heavy is imported. Whatever cannot be found
out is reported as unknown (``None`` or ``"unknown"``); nothing is guessed from a name.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from sentport import __version__

UNKNOWN = "unknown"

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")

# Name in reports -> flag in /proc/cpuinfo.
_FEATURE_FLAGS = {
    "AVX2": "avx2",
    "AVX512F": "avx512f",
    "AVX512-VNNI": "avx512_vnni",
    "AVX-VNNI": "avx_vnni",
    "AVX512-BF16": "avx512_bf16",
    "AMX-INT8": "amx_int8",
    "AMX-BF16": "amx_bf16",
}
CPU_FEATURES = tuple(_FEATURE_FLAGS)


def available_cores(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Cores this process may use: the smaller of its affinity and its cgroup quota, at least 1.

    A quota of 2.5 cores counts as 2: a third thread would be throttled half of the time, and a batch waits for its
    slowest thread.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where the cgroup file systems are mounted.
    """
    quota = cgroup_quota(proc, cgroup)
    allowed = affinity_cores()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def affinity_cores() -> int:
    """Cores in this process's affinity mask (``taskset``, cpuset); where there is no mask, the machine's count."""
    if sys.platform == "linux":
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def cgroup_quota(proc: Path = _PROC, cgroup: Path = _CGROUP) -> float | None:
    """The tightest CPU quota, in cores, on the way from this process's cgroup to the root; None when unlimited.

    Reads version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``), since both may be mounted at once. A limit
    above the container's own root is not visible from inside and cannot be counted.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where the cgroup file systems are mounted.
    """
    quotas = []
    for line in (_read(proc / "self" / "cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            mounts, read_quota = (cgroup, cgroup / "unified"), _quota_v2
        elif "cpu" in controllers.split(","):
            mounts, read_quota = (cgroup / "cpu", cgroup / controllers), _quota_v1
        else:
            continue
        found = (read_quota(folder) for mount in mounts for folder in _ancestry(mount, path))
        quotas += [quota for quota in found if quota is not None]
    return min(quotas, default=None)


def _ancestry(mount: Path, path: str) -> Iterator[Path]:
    """The folder of a cgroup and all folders above it up to the mount; those that do not exist are skipped later.

    Without a cgroup namespace the path is the host's while the mount shows only the container's part, so the lower
    folders are missing and the mount itself carries the limit. ``/..`` stands for a cgroup outside the namespace.
    """
    parts = PurePosixPath(path).parts[1:]
    if ".." in parts:
        parts = ()
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None  # "max 100000" is no number: no limit


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))  # -1: no limit


def _ratio(quota: str | None, period: str | None) -> float | None:
    try:
        quota_us, period_us = int(quota or ""), int(period or "")
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def cpu_model(proc: Path = _PROC) -> str:
    """The CPU's model name as the kernel gives it, or ``"unknown"``.

    Args:
        proc: Where procfs is mounted.
    """
    return _cpuinfo_field(proc, "model name") or UNKNOWN


def cpu_features(proc: Path = _PROC) -> frozenset[str] | None:
    """Those of ``CPU_FEATURES`` that the CPU has, or None where the kernel does not say (not Linux on x86).

    Args:
        proc: Where procfs is mounted.
    """
    field = _cpuinfo_field(proc, "flags")
    if field is None:
        return None
    flags = set(field.split())
    return frozenset(name for name, flag in _FEATURE_FLAGS.items() if flag in flags)


def _cpuinfo_field(proc: Path, field: str) -> str | None:
    match = re.search(rf"^{field}[ \t]*:[ \t]*(.*)$", _read(proc / "cpuinfo") or "", re.MULTILINE)
    return match.group(1).strip() if match else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


@dataclass(frozen=True)
class CudaDriver:
    """What the CUDA driver says.

    Attributes:
        devices: Name and compute capability of each device, in CUDA's order; None when it is unknown.
        version: Newest CUDA version that the driver can run, major and minor; None without a driver.
        reason: Why there is no device, or why it is unknown; empty when there is one.
        capabilities: Compute capability of each device, major and minor.
    """

    devices: tuple[str, ...] | None
    version: tuple[int, int] | None = None
    reason: str = ""
    capabilities: tuple[tuple[int, int], ...] = ()


def cuda_driver(library: str = "libcuda.so.1") -> CudaDriver:
    """Ask the CUDA driver for its devices. It creates no context, so it takes no memory on them.

    Call it in a process that forks no CUDA users afterwards: CUDA, once initialised, does not survive a fork.

    Args:
        library: The driver's library, by name or path.
    """
    if sys.platform != "linux":
        return CudaDriver(None, reason=f"{UNKNOWN}: CUDA devices are looked for on Linux only")
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return CudaDriver((), reason=f"no NVIDIA driver: {library} cannot be loaded")
    encoded = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(encoded))
    version = (encoded.value // 1000, encoded.value % 1000 // 10)
    code = driver.cuInit(0)
    if code != 0:
        meaning = " (no device)" if code == 100 else ""
        return CudaDriver((), version, f"the NVIDIA driver does not start: cuInit gives error {code}{meaning}")
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    devices = tuple(_cuda_device(driver, index) for index in range(count.value))
    capabilities = tuple(_cuda_capability(driver, index) for index in range(count.value))
    return CudaDriver(devices, version, "" if devices else "the NVIDIA driver sees no device", capabilities)


def cuda_devices() -> tuple[str, ...]:
    """The CUDA devices that the driver sees; empty also where that is unknown."""
    return cuda_driver().devices or ()


def cuda_capability() -> tuple[int, int] | None:
    """Compute capability of the first CUDA device, major and minor; None where there is none."""
    return next(iter(cuda_driver().capabilities), None)


def _cuda_device(driver: ctypes.CDLL, index: int) -> str:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    if driver.cuDeviceGet(ctypes.byref(device), index) != 0 or driver.cuDeviceGetName(name, len(name), device) != 0:
        return f"device {index} ({UNKNOWN})"
    major, minor = _cuda_capability(driver, index)
    return f"{name.value.decode(errors='replace')} (compute capability {major}.{minor})"


def _cuda_capability(driver: ctypes.CDLL, index: int) -> tuple[int, int]:
    device, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), index)
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    return major.value, minor.value


def missing_libraries(library: Path, folders: Sequence[Path] = ()) -> list[str]:
    """Names of the shared libraries that ``library`` asks the loader for and that cannot be loaded.

    Where a library is there but one that it needs itself is not, the latter is named. Libraries that are found are
    loaded into this process.

    Args:
        library: An ELF shared library.
        folders: Where to look besides the loader's own places and the library's run path.

    Raises:
        OSError: ``library`` cannot be read.
        ValueError: ``library`` is not a 64-bit ELF file.
    """
    needed, run_path = needed_libraries(library)
    searched = [*run_path, *folders]
    missing = []
    for name in needed:
        if any((folder / name).is_file() for folder in searched):
            continue
        try:
            ctypes.CDLL(name)
        except OSError as error:
            culprit = str(error).partition(":")[0]
            missing.append(culprit if ".so" in culprit and "/" not in culprit else name)
    return list(dict.fromkeys(missing))


_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29


def needed_libraries(library: Path) -> tuple[list[str], list[Path]]:
    """The libraries that an ELF file asks the loader for, and its run path with ``$ORIGIN`` filled in.

    The file is read, not loaded: loading would stop at the first library that is missing.

    Raises:
        OSError: ``library`` cannot be read.
        ValueError: ``library`` is not a 64-bit ELF file.
    """
    with library.open("rb") as file:
        try:
            entries, strings = _dynamic_section(file)
        except struct.error as error:
            raise ValueError(f"{library.name}: found a damaged ELF file ({error})") from None

    def text(offset: int) -> str:
        return strings[offset : strings.index(b"\0", offset)].decode()

    needed = [text(value) for tag, value in entries if tag == _DT_NEEDED]
    origin = str(library.resolve().parent)
    run_path = [
        Path(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))
        for tag, value in entries
        if tag in (_DT_RPATH, _DT_RUNPATH)
        for folder in text(value).split(":")
        if folder
    ]
    return needed, run_path


def _dynamic_section(file: BinaryIO) -> tuple[list[tuple[int, int]], bytes]:
    """The (tag, value) pairs of the dynamic section and the string table that they point into."""
    header = file.read(64)
    if header[:5] != b"\x7fELF\x02":
        raise ValueError(f"{Path(file.name).name}: expected a 64-bit ELF file, found something else")
    order = "<" if header[5] == 1 else ">"
    table_offset = struct.unpack_from(order + "Q", header, 32)[0]
    entry_size, entry_count = struct.unpack_from(order + "HH", header, 54)
    segments = []
    for index in range(entry_count):
        file.seek(table_offset + index * entry_size)
        # type, flags, offset in the file, address, physical address, size in the file
        segments.append(struct.unpack(order + "IIQQQQ", file.read(40)))
    entries: list[tuple[int, int]] = []
    for kind, _, offset, _, _, size in segments:
        if kind == _PT_DYNAMIC:
            file.seek(offset)
            entries = list(struct.iter_unpack(order + "qQ", file.read(size)))
    values = dict(entries)
    address = values.get(_DT_STRTAB, 0)
    for kind, _, offset, start, _, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:  # the table is given by address, not by offset
            file.seek(offset + address - start)
            return entries, file.read(values.get(_DT_STRSZ, 0))
    return [], b""


def installed_versions(distributions: Sequence[str]) -> dict[str, str]:
    """Versions of Python, of sentport, and of those distributions that are installed, by name."""
    found = {"python": platform.python_version(), "sentport": __version__}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
