"""What a training has reached, on disk: the state in one file written aside and renamed, the best weights in another.

Batches and dropout masks are functions of the seed and the step, so weights, optimiser and step number are the state: a
run killed anywhere goes on from the last state as if nothing had happened.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from sentport.errors import SentportError
from sentport.files import file_written_aside

MODEL_FOLDER = "model"  # of a seed: its outcome
_RUN_FILE, _STATE_FILE, _BEST_FILE = "run.json", "state.pt", "best.pt"

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class CurvePoint:
    """What was measured at a step.

    Attributes:
        step: Optimiser steps done.
        loss: Mean of the steps since the point before.
        dev: Spearman x 100 on the dev pairs; None without them, as are the next two.
        alignment: Of the dev pairs rated above 4; lower is better.
        uniformity: Of the dev sentences; lower is better.
    """

    step: int
    loss: float
    dev: float | None = None
    alignment: float | None = None
    uniformity: float | None = None


@dataclass
class State:
    """Where a training stands, but for its weights.

    Attributes:
        step: Optimiser steps done.
        best: The best point so far; None without dev pairs.
        curve: All points so far.
        seconds: Time spent in steps, of all runs together.
    """

    step: int = 0
    best: CurvePoint | None = None
    curve: list[CurvePoint] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def telling_of_failed_writes(folder: Path) -> Iterator[None]:
    """What torch and safetensors raise when a disk is full says neither that nor what to do."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SentportError(
            f"{folder} cannot be written ({type(error).__name__}: {reason}); make room and give the same command "
            "again: what was written before is whole"
        ) from error


@contextmanager
def telling_of_damage(folder: Path) -> Iterator[None]:
    """What torch raises for a state that is damaged, or another model's, says neither that nor what to do."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, UnpicklingError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SentportError(
            f"the state in {folder} is damaged, or of another base ({type(error).__name__}: {reason[:100]}); remove "
            "that folder, and the same command begins its training anew"
        ) from error


def save_state(folder: Path, state: State, tensors: Mapping[str, Any]) -> None:
    """Replace the saved state.

    Args:
        folder: Of this seed.
        state: Where the training stands.
        tensors: State dictionaries of modules and optimiser, by name.
    """
    with telling_of_failed_writes(folder), file_written_aside(folder / _STATE_FILE) as aside:
        torch.save({"state": json.dumps(asdict(state)), "tensors": dict(tensors)}, aside)


def load_state(folder: Path) -> tuple[State, Mapping[str, Any]] | None:
    """The saved state, and its state dictionaries on the CPU; None where a training starts."""
    file = folder / _STATE_FILE
    if not file.is_file():
        return None
    with telling_of_damage(folder):
        held = torch.load(file, map_location="cpu", weights_only=True)
        values = json.loads(held["state"])
        points = [CurvePoint(**point) for point in values["curve"]]
        best = None if values["best"] is None else CurvePoint(**values["best"])
        return State(values["step"], best, points, values["seconds"]), held["tensors"]


def save_best(folder: Path, weights: Weights) -> None:
    """Replace the weights of the best checkpoint; always before the state that tells of it."""
    with telling_of_failed_writes(folder), file_written_aside(folder / _BEST_FILE) as aside:
        torch.save(dict(weights), aside)


def drop_state(folder: Path) -> None:
    """Remove what has done its work."""
    for name in (_STATE_FILE, _BEST_FILE):
        (folder / name).unlink(missing_ok=True)


def load_best(folder: Path) -> Weights:
    """The weights of the best checkpoint."""
    with telling_of_damage(folder):
        held: Weights = torch.load(folder / _BEST_FILE, map_location="cpu", weights_only=True)
    return held


def job_folder(out: Path) -> Path:
    """Where the unfinished work for an output lies."""
    return out.absolute().parent / f".{out.name}.job"


@contextmanager
def open_job(out: Path, run: Mapping[str, Any], *, replace: bool) -> Iterator[Path]:
    """The folder of an unfinished run that this process alone works on, new or resumed.

    Args:
        out: The output.
        run: Everything that decides what comes out, as plain values.
        replace: Whether an unfinished run that is another is dropped.

    Raises:
        SentportError: When it is another and must not be, or another process works there.
    """
    folder = job_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _RUN_FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SentportError(
                f"another training is at work in {folder}; wait for it, or name another output"
            ) from None
        file.seek(0)
        ours = json.dumps(run)
        difference = _difference(_parse(file.read()), json.loads(ours), "run")
        if difference and not replace and _has_progress(folder):
            raise SentportError(
                f"{folder} holds an unfinished training with another {difference}; add --force to drop it, or name "
                "another output"
            )
        if difference:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
        file.truncate(0)
        file.write(ours)
        file.flush()
        try:
            yield folder
        except BaseException:
            if not _has_progress(folder):  # a mistake that is mended is no other training
                shutil.rmtree(folder)
            raise


def _has_progress(folder: Path) -> bool:
    """Whether an unfinished run has reached anything that another would not reach as soon."""
    return any(path.name in (_STATE_FILE, MODEL_FOLDER) for path in folder.rglob("*"))


def _parse(text: str) -> Any:
    """A run's description; None where there is none, or a kill cut it off, before anything else was written."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _difference(there: Any, here: Any, where: str) -> str | None:
    """The first thing that two runs differ in, in words; None where they are one, or there is no other."""
    if isinstance(there, dict) and isinstance(here, dict):
        found = (_difference(there.get(name), here.get(name), name) for name in {**there, **here})
        return next((difference for difference in found if difference), None)
    if (there is None and where == "run") or there == here:
        return None
    return f"{where} ({str(there)[:40]} there, {str(here)[:40]} here)"
