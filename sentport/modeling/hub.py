"""Where a checkpoint comes from: a folder, or a model of the hub."""

from __future__ import annotations

from pathlib import Path

from sentport.errors import CheckpointError


def locate(source: str | Path) -> Path:
    """The folder of a checkpoint: the one named, or a hub model's in the local cache, fetched where it can be."""
    folder = Path(source)
    if folder.is_dir():
        if (folder / "bundle.json").is_file():
            raise CheckpointError(f"{folder} is a bundle; give the checkpoint that it was exported from")
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise CheckpointError(f"{folder} holds neither modules.json nor config.json; expected a checkpoint folder")
        return folder
    if folder.is_absolute() or str(source).startswith(".") or str(source).count("/") > 1:
        what = "is not a folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{source} {what}; give a checkpoint folder or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(str(source), ignore_patterns=["*.onnx", "*.msgpack", "*.h5", "*.ot", "openvino/*"])
        )
    except Exception as error:  # the hub client raises a dozen kinds
        raise CheckpointError(
            f"{source} is no folder here and cannot be fetched from the hub ({type(error).__name__}: no network, "
            "no such model, or HF_HUB_OFFLINE is set)"
        ) from error
