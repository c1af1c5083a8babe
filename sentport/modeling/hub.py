"""Where a checkpoint comes from: a folder, or a model of the hub, of which only what an export needs is fetched."""

from __future__ import annotations

import glob
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sentport.errors import CheckpointError
from sentport.modeling.source_files import first_line, module_folders, read_modules

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
# By name, since repositories also hold variants (model.fp16.safetensors) and other frameworks' weights.
_SAFETENSORS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_BIN = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_TEXT_SUFFIXES = (".json", ".txt", ".model", ".py")  # configuration, vocabularies, sentencepiece, code of its own


@dataclass(frozen=True)
class Source:
    """A checkpoint's files on this machine.

    Attributes:
        folder: Where they lie.
        name: The folder's name, or the hub's id.
        commit: The hub's commit they are from; None for a folder.
        pinned: Whether what was asked for cannot change: a folder, or a hub revision given as a full commit.
    """

    folder: Path
    name: str
    commit: str | None = None
    pinned: bool = True


def locate(source: str | Path, revision: str | None = None) -> Source:
    """The files of a checkpoint: the folder named, or a hub model's, fetched where they are not in the local cache.

    Args:
        source: A folder, or a hub id (``owner/name``).
        revision: Branch, tag or full commit of the hub's repository; None = its default branch.

    Raises:
        CheckpointError: When there is neither such a folder nor such a model, or it cannot be fetched.
    """
    folder = Path(source)
    if folder.is_dir():
        if revision is not None:
            raise CheckpointError(f"{source} is a folder, which has no revision {revision!r}; leave --revision out")
        if (folder / "bundle.json").is_file():
            raise CheckpointError(f"{folder} is a bundle; give the checkpoint that it was exported from")
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise CheckpointError(f"{folder} holds neither modules.json nor config.json; expected a checkpoint folder")
        return Source(folder, folder.resolve().name)
    if not _HUB_ID.fullmatch(str(source)) or str(source).startswith("."):
        what = "is not a folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{source} {what}; give a checkpoint folder or a hub id")
    fetched = _fetch(str(source), revision)
    return Source(fetched, str(source), fetched.name, revision == fetched.name)


def needed_files(files: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Which of a repository's files an export reads, by path.

    Args:
        files: All its files.
        folders: The folders of its modules, from modules.json; ``""`` is the root.

    Returns:
        Texts and weights that lie in these folders, of the weights safetensors where a folder has them; and code.
    """
    paths = [PurePosixPath(file) for file in files]
    wanted = {PurePosixPath(folder) for folder in (*folders, "")}
    safe = {path.parent for path in paths if _SAFETENSORS.fullmatch(path.name)}

    def needed(path: PurePosixPath) -> bool:
        if path.suffix == ".py":
            return True  # what modeling code imports may lie anywhere
        if path.parent not in wanted:
            return False
        if path.parent in safe and path.name.endswith((".bin", ".bin.index.json")):
            return False
        weights = _SAFETENSORS.fullmatch(path.name) or _BIN.fullmatch(path.name)
        return weights is not None or path.suffix in _TEXT_SUFFIXES

    return [str(path) for path in paths if needed(path)]


def _fetch(model: str, revision: str | None) -> Path:
    """The snapshot folder, whose name is the commit; complete as far as an export reads it."""
    from huggingface_hub import get_cached_repo_tree, snapshot_download

    def snapshot(at: str | None, names: Sequence[str]) -> Path:
        patterns = [glob.escape(name) for name in names]
        with _bars_for_people():
            return Path(snapshot_download(model, revision=at, allow_patterns=patterns))

    commit = None
    try:
        first = snapshot(revision, ["modules.json", "config.json"])
        commit = first.name
        files = [entry.path for entry in get_cached_repo_tree(model, revision=commit)]
        folders = module_folders(read_modules(first) or [])
        names = needed_files(files, folders)
        if not names:
            raise CheckpointError(f"{model} at commit {commit} holds no file of a checkpoint")
        return snapshot(commit, names)
    except CheckpointError:
        raise
    except Exception as error:  # the hub client raises a dozen kinds, and the network its own
        raise CheckpointError(_explained(model, revision, commit, error)) from error


@contextmanager
def _bars_for_people() -> Iterator[None]:
    """The hub client's progress bars only on a terminal, and only where warnings are shown."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or (
        sys.stderr.isatty() and logging.getLogger(__name__).isEnabledFor(logging.WARNING)
    ):
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _explained(model: str, revision: str | None, commit: str | None, error: Exception) -> str:
    """What went wrong with the hub, and the way out, in one line; ``commit`` is what the revision was found to be."""
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    answer = f"{constants.ENDPOINT} answers {status}"
    if isinstance(error, errors.GatedRepoError):
        return f"{model} is gated ({answer}): accept its terms there, then set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{model} has no revision {revision!r} ({answer}); give a branch, a tag or a full commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{model} is no folder here, and no model of the hub or a private one ({answer}): check it, or set HF_TOKEN"
        )
    if status is not None:
        return f"{model} cannot be fetched from the hub: {answer}; try again, whole files that have come are kept"
    where = f"{model} at revision {revision or constants.DEFAULT_REVISION!r}"
    reason = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else f"{constants.ENDPOINT} cannot be reached"
    missing = isinstance(error, errors.LocalEntryNotFoundError | errors.CachedRepoTreeNotFoundError)
    if missing and (commit is not None or isinstance(error, errors.IncompleteSnapshotError)):
        return f"{where} lies in the local cache only in part, and the rest cannot be fetched from the hub: {reason}"
    if missing:
        return f"{where} is no folder here, is not in the local cache and cannot be fetched from the hub: {reason}"
    what = f"{type(error).__name__}: {first_line(error)}"
    return f"{where} cannot be fetched from the hub ({what}); try again, whole files that have come are kept"
