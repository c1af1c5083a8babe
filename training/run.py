"""A recipe with some seeds, from its name to the output folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sentport.errors import SentportError
from sentport.evaluation import read_sts
from sentport.evaluation.sts import require_correlation
from sentport.files import folder_written_aside
from sentport.hardware import available_cores
from training.card import model_card
from training.data import data_hash, read_data
from training.devices import Devices
from training.job import job_folder, open_job
from training.loop import RESULT_FILE, Plan, Reporting, Say, train_seed
from training.recipe import load_recipe
from training.tables import RecipeError


@dataclass(frozen=True)
class Options:
    """What is asked for beside the recipe.

    Attributes:
        data: The folder that data files lie under.
        settings: Fields of the recipe that are to be otherwise: ``table.field=value``.
        seeds: How many seeds, counted up from the recipe's.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Compute threads of each process; None = the cores allowed, shared by the processes.
        force: Replace an existing output, and drop another unfinished run.
    """

    data: Path = Path()
    settings: Sequence[str] = ()
    seeds: int = 1
    device: str = "auto"
    threads: int | None = None
    force: bool = False


def train(name: str, out: Path, options: Options, reporting: Reporting) -> list[dict[str, Any]]:
    """Train a recipe; of several seeds, the one that is best on the dev pairs becomes the output.

    The work lies in a hidden folder beside ``out`` until it is complete: the same call again takes it up.

    Args:
        name: A shipped recipe's name, or a ``.toml`` file.
        out: The checkpoint folder to make.
        options: What else is asked for.
        reporting: Who is told what.

    Returns:
        What each seed came to, as ``training.json`` has it; nothing in processes other than the first.

    Raises:
        SentportError: When something cannot be done as asked.
    """
    if options.seeds < 1:
        raise SentportError(f"seeds is {options.seeds}; expected 1 or more")
    if options.threads is not None and options.threads < 1:
        raise SentportError(f"threads is {options.threads}; expected 1 or more")
    devices = Devices(options.device)
    torch.set_num_threads(options.threads or max(1, available_cores() // devices.processes))
    if devices.device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    say = reporting.say if devices.is_first else _nobody
    told = Reporting(say, reporting.log if devices.is_first else _nowhere, reporting.progress and devices.is_first)
    plan = make_plan(name, options.data, options.settings, say)
    run = describe(plan)
    if out.exists() and not options.force:
        raise SentportError(f"{out} exists; add --force to replace it{_sweep(out, run, devices)}")
    _check_ours(out)
    folder = job_folder(out)
    if not devices.is_first:
        _train_seeds(plan, folder, options.seeds, devices, told)
        return []
    with open_job(out, run, replace=options.force) as folder:
        results = _train_seeds(plan, folder, options.seeds, devices, told)
        _publish(plan, results, run, folder, out)
    shutil.rmtree(folder)
    return results


def make_plan(name: str, data: Path, settings: Sequence[str], say: Say, then: Sequence[str] = ()) -> Plan:
    """A recipe with its data read, and the plan of the recipe that comes first, where there is one.

    Args:
        name: The recipe's.
        data: The folder that data files lie under.
        settings: Fields of the recipe that are to be otherwise.
        say: Told what was read.
        then: Names of the recipes that come after it.

    Raises:
        SentportError: When something of it cannot be read.
    """
    if name in then:
        round_trip = " after ".join([*then[then.index(name) :], name])
        raise RecipeError(f"{name} comes after itself ({round_trip}); expected a base somewhere")
    recipe = load_recipe(name, settings)
    first = None if recipe.after is None else make_plan(recipe.after, data, (), say, (*then, name))
    sources = read_data(recipe.data, data, contrastive=recipe.objective.kind == "contrastive")
    for source in sources:
        say(source.report())
    files = [] if recipe.evaluation is None else [recipe.evaluation.dev, *recipe.evaluation.test]
    pairs = [require_correlation(read_sts(data / file), str(data / file)) for file in files]
    if len(set(files)) < len(files):
        raise RecipeError(f"{name}: evaluation names a file twice; expected different ones")
    return Plan(
        Path(name).stem,
        recipe,
        sources,
        pairs[0] if pairs else None,
        dict(zip(files[1:], pairs[1:], strict=True)),
        data,
        first,
    )


def describe(plan: Plan) -> dict[str, Any]:
    """All that decides what a training comes to, but for the seed and the machine."""
    first = {} if plan.first is None else {"after": describe(plan.first)}
    return {"recipe": plan.recipe.plain(), "data_sha256": data_hash(plan.sources), **first}


def _train_seeds(plan: Plan, folder: Path, seeds: int, devices: Devices, reporting: Reporting) -> list[dict[str, Any]]:
    results = []
    for place in range(seeds):
        seed = plan.recipe.training.seed + place
        if seeds > 1:
            reporting.say(f"seed {seed}, {place + 1} of {seeds}")
        results.append(train_seed(plan, seed, folder / f"seed-{seed}", devices, reporting))
    return results


def _publish(plan: Plan, results: list[dict[str, Any]], run: dict[str, Any], folder: Path, out: Path) -> None:
    """The best seed's checkpoint as the output, with the record and the card of all."""
    chosen = max(range(len(results)), key=lambda place: results[place]["scores"].get("dev", 0.0))
    seed = results[chosen]["seed"]
    with folder_written_aside(out) as aside:
        shutil.copytree(folder / f"seed-{seed}" / "model", aside, dirs_exist_ok=True)
        (aside / "README.md").write_text(model_card(plan.name, results, chosen), encoding="utf-8")
        record = {"run": run, "chosen_seed": seed, "seeds": results}
        (aside / RESULT_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _sweep(out: Path, run: dict[str, Any], devices: Devices) -> str:
    """Remove the work of a run that was killed after its output was complete; says so."""
    folder, record = job_folder(out), out / RESULT_FILE
    if not (devices.is_first and folder.is_dir() and record.is_file()):
        return ""
    if _run_of(record) != json.loads(json.dumps(run)):
        return ""
    shutil.rmtree(folder)
    return " (it is the complete outcome of this very training, whose leftovers are removed now)"


def _run_of(record: Path) -> Any:
    """What run a ``training.json`` is of; None where it is none of ours."""
    try:
        return json.loads(record.read_text(encoding="utf-8"))["run"]
    except (ValueError, LookupError, TypeError):
        return None


def _check_ours(out: Path) -> None:
    """Refuse to replace what training has not made."""
    if out.exists() and not (out / RESULT_FILE).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise SentportError(
            f"{out} was not made by sentport train (no {RESULT_FILE}), so --force does not replace it; "
            "name another folder"
        )


def _nobody(_: str) -> None:
    """Processes other than the first say nothing."""


def _nowhere(_name: str, _step: int, _figures: dict[str, float]) -> None:
    """And log nothing."""
