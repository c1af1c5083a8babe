"""The Triton releases that a repository is made for, and the container that one runs in."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sentport.errors import SentportError
from triton_repo.source import source_files

DOCKERFILE = "Dockerfile"
DOCKERIGNORE = ".dockerignore"
CODE_FILE = "sentport.zip"
# They lie beside the models; the server takes no notice of files there.
CONTAINER_FILES = (DOCKERFILE, DOCKERIGNORE, CODE_FILE)


@dataclass(frozen=True, slots=True)
class Release:
    """What a release of NVIDIA's container holds.

    Attributes:
        name: Its tag.
        onnxruntime: Version in its onnxruntime backend.
        opset: The newest ONNX operator set that this one takes.
        ir_version: The newest ONNX file format.
        pytriton: The wheel with the same server, which has stubs for more Pythons than the container.
    """

    name: str
    onnxruntime: str
    opset: int
    ir_version: int
    pytriton: str

    @property
    def base(self) -> str:
        """NVIDIA's image."""
        return f"nvcr.io/nvidia/tritonserver:{self.name}-py3"

    @property
    def image(self) -> str:
        """The image that the Dockerfile makes."""
        return f"sentport-triton:{self.name}"


RELEASES = {"24.10": Release("24.10", "1.19.2", 21, 10, "0.7.0")}
NEWEST = "24.10"


def release_named(name: str) -> Release:
    """A release by its tag.

    Raises:
        SentportError: For one that is not known here.
    """
    if name not in RELEASES:
        raise SentportError(f"Triton release {name!r} is unknown; known: {', '.join(RELEASES)}")
    return RELEASES[name]


# The container's own stub embeds Python 3.10, and sentport needs 3.11: the wheel of the same server has that stub.
_DOCKERFILE = """\
# docker build -t {image} .
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3.11 python3.11-venv libpython3.11 \\
    && rm -rf /var/lib/apt/lists/*
RUN python3.11 -m venv /opt/sentport \\
    && /opt/sentport/bin/pip install --no-cache-dir {requirements} \\
    && python3.11 -m venv /tmp/wheel \\
    && /tmp/wheel/bin/pip install --no-cache-dir --no-deps nvidia-pytriton=={pytriton} \\
    && cp /tmp/wheel/lib/python3.11/site-packages/pytriton/tritonserver/python_backend_stubs/3.11/{stub} \\
       /opt/tritonserver/backends/python/{stub} \\
    && rm -rf /tmp/wheel
COPY {code} /opt/sentport/{code}
RUN echo /opt/sentport/{code} > /opt/sentport/lib/python3.11/site-packages/sentport.pth
# The stub takes the first python3 on PATH for its environment.
ENV PATH=/opt/sentport/bin:$PATH
"""


def write_container_files(folder: Path, release: Release, requirements: Sequence[str]) -> None:
    """Write what ``docker build FOLDER`` needs for an image that runs the models of ``folder``.

    Args:
        folder: The model repository.
        release: The release.
        requirements: Packages that the models import.
    """
    text = _DOCKERFILE.format(
        base=release.base,
        image=release.image,
        requirements=" ".join(f"'{package}'" for package in requirements),
        pytriton=release.pytriton,
        stub="triton_python_backend_stub",
        code=CODE_FILE,
    )
    (folder / DOCKERFILE).write_text(text, encoding="utf-8")
    # The models, which may be gigabytes, are mounted and not copied.
    (folder / DOCKERIGNORE).write_text(f"*\n!{CODE_FILE}\n", encoding="utf-8")
    with zipfile.ZipFile(folder / CODE_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in source_files().items():
            # A fixed date, so that the same source is the same image layer.
            entry = zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


def container_commands(repository: Path, release: Release, options: Sequence[str], *, gpu: bool) -> list[str]:
    """The shell commands that build the image and run it on a repository, with options of ``tritonserver``."""
    run = ["docker", "run", "--rm", "--network", "host", "--shm-size", "1g", *(["--gpus", "all"] if gpu else [])]
    run += [
        "-v",
        f"{repository.resolve()}:/models:ro",
        release.image,
        "tritonserver",
        "--model-repository=/models",
        *options,
    ]
    return [f"docker build -t {release.image} {shlex.quote(str(repository))}", shlex.join(run)]
