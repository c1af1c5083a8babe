"""One seed of a recipe, from its base to a checkpoint folder; killed anywhere and begun again, it ends the same."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sentport import __version__
from sentport.errors import SentportError
from sentport.evaluation import StsPairs
from sentport.evaluation.embeddings import Embeddings
from sentport.evaluation.geometry import geometry
from sentport.evaluation.scoring import correlate, rate, sts_score
from sentport.files import folder_written_aside
from sentport.hardware import cpu_model
from sentport.progress import Progress
from training.card import model_card
from training.data import Source
from training.devices import Devices
from training.fresh import make_fresh
from training.job import (
    MODEL_FOLDER,
    CurvePoint,
    State,
    drop_state,
    load_best,
    load_state,
    save_best,
    save_state,
    telling_of_damage,
    telling_of_failed_writes,
)
from training.recipe import Recipe
from training.save import save_checkpoint
from training.setup import Base, make_learner, open_base
from training.step import Learner, learning_rate, train_step

RESULT_FILE = "training.json"

Say = Callable[[str], object]
Log = Callable[[str, int, dict[str, float]], object]


@dataclass(frozen=True)
class Plan:
    """A recipe with all that it needs read in.

    Attributes:
        name: The recipe's name.
        recipe: What to do.
        sources: The examples.
        dev: Pairs that choose the checkpoint; None = the last one is kept.
        tests: Pairs that are scored once, by file name.
        data: The folder that data files lie under.
        first: The plan whose outcome is the base, where the recipe names one.
    """

    name: str
    recipe: Recipe
    sources: list[Source]
    dev: StsPairs | None
    tests: dict[str, StsPairs]
    data: Path
    first: Plan | None = None


@dataclass(frozen=True)
class Reporting:
    """Who is told what.

    Attributes:
        say: One line at a time, for a reader.
        log: Figures of a step of a named run, for curves.
        progress: Whether to draw a bar on a terminal.
    """

    say: Say
    log: Log
    progress: bool

    def tell(self, name: str, state: State, steps: int, speed: float) -> None:
        """Tell of a checkpoint, and of the sentences a second since the one before."""
        point = state.curve[-1]
        left = state.seconds / state.step * (steps - state.step)
        dev = "" if point.dev is None else f"  dev {point.dev:.2f}"
        self.say(f"step {state.step}/{steps}  loss {point.loss:.4f}{dev}  {speed:,.0f} sentences/s  {left:,.0f} s left")
        figures = {"sentences_per_second": speed, **asdict(point)}
        self.log(name, state.step, {key: value for key, value in figures.items() if value is not None})


def train_seed(plan: Plan, seed: int, folder: Path, devices: Devices, reporting: Reporting) -> dict[str, Any]:
    """Train with one seed.

    Args:
        plan: What to do.
        seed: Of everything that is drawn.
        folder: Where state and outcome lie; ``folder/model`` is the outcome.
        devices: The processes.
        reporting: Who is told what.

    Returns:
        What ``model/training.json`` holds.
    """
    outcome = folder / MODEL_FOLDER
    devices.wait()  # so that all see the same files
    if not outcome.exists():
        folder.mkdir(parents=True, exist_ok=True)
        recipe = plan.recipe.with_seed(seed)
        base = open_base(recipe, _start(plan, seed, folder, devices, reporting), devices, reporting.say)
        begun = time.monotonic()  # reading texts to tokens counts as training
        learner = make_learner(recipe, base, plan.sources, devices, reporting.say)
        state = _run_steps(plan, learner, base, folder, reporting, begun)
        if devices.is_first:
            _write_outcome(plan, recipe, base, state, folder, devices)
        devices.wait()
    result: dict[str, Any] = json.loads((outcome / RESULT_FILE).read_text(encoding="utf-8"))
    return result


def _start(plan: Plan, seed: int, folder: Path, devices: Devices, reporting: Reporting) -> str | Path:
    """The checkpoint that training starts from; one that is not there yet is made."""
    if plan.first is not None:
        train_seed(plan.first, seed, folder / "first", devices, reporting)
        return folder / "first" / MODEL_FOLDER
    if plan.recipe.fresh is None:
        assert plan.recipe.base is not None
        return plan.recipe.base
    out = folder / "fresh"
    if devices.is_first and not out.exists():
        texts = (text for source in plan.sources for example in source.examples for text in example.texts)
        make_fresh(plan.recipe.fresh, texts, plan.data, seed, out)
    devices.wait()
    return out


def _run_steps(plan: Plan, learner: Learner, base: Base, folder: Path, reporting: Reporting, clock: float) -> State:
    """All steps that are left, with a checkpoint after every so many; seconds count from ``clock`` on."""
    training, devices = learner.recipe.training, learner.devices
    state = _resume(learner, folder, reporting.say)
    name = f"{plan.name} seed {training.seed}"
    texts_a_step = training.batch_size * training.accumulate * len(learner.batches[0].views)
    with Progress("training", learner.steps * texts_a_step, "sentences", shown=reporting.progress) as bar:
        bar.skip(state.step * texts_a_step)
        losses: list[float] = []
        while state.step < learner.steps:
            losses.append(train_step(learner, state.step))
            _refuse_divergence(math.isfinite(losses[-1]), state.step + 1, learner)
            state.step += 1
            bar.rename(f"step {state.step} loss {losses[-1]:.4f}")
            bar.advance(texts_a_step)
            figures = {"loss": losses[-1], "learning_rate": learning_rate(training, state.step - 1, learner.steps)}
            reporting.log(name, state.step, figures)
            if state.step % training.checkpoint_every == 0 or state.step == learner.steps:
                seconds = time.monotonic() - clock
                state.seconds += seconds
                weights = base.model.parameters()
                _refuse_divergence(all(bool(weight.isfinite().all()) for weight in weights), state.step, learner)
                if devices.is_first:
                    _checkpoint(plan, learner, base, state, losses, folder)
                    reporting.tell(name, state, learner.steps, texts_a_step * len(losses) / seconds)
                devices.wait()
                losses, clock = [], time.monotonic()
    return state


def _refuse_divergence(finite: bool, step: int, learner: Learner) -> None:
    """Nothing that is not finite is saved: what was saved before stays the last state."""
    if not finite:
        raise SentportError(
            f"training diverged at step {step}: loss or weights are no longer finite; lower training.learning_rate "
            f"(it is {learner.recipe.training.learning_rate:g}), or set training.clip_norm"
        )


def _checkpoint(plan: Plan, learner: Learner, base: Base, state: State, losses: list[float], folder: Path) -> None:
    """Evaluate, keep the best weights, then save the state that tells of them."""
    point = CurvePoint(state.step, math.fsum(losses) / len(losses))
    if plan.dev is not None:
        embed = Embeddings(base.encoder)
        space = geometry(plan.dev, embed)
        dev = correlate(rate({"dev": plan.dev}, embed))
        point = replace(point, dev=dev, alignment=space.alignment, uniformity=space.uniformity)
    state.curve.append(point)
    if point.dev is not None and _is_better(point.dev, state.best):
        state.best = point
        save_best(folder, base.model.state_dict())
    tensors = {name: module.state_dict() for name, module in learner.modules().items()}
    save_state(folder, state, {**tensors, "optimizer": learner.optimizer.state_dict()})


def _is_better(dev: float, best: CurvePoint | None) -> bool:
    """Whether a score is above the best so far; a constant encoder's nan is below all others."""
    return best is None or best.dev is None or math.isnan(best.dev) or dev > best.dev


def _resume(learner: Learner, folder: Path, say: Say) -> State:
    """The state that an earlier run has left, put into modules and optimiser; a new one where there is none."""
    saved = load_state(folder)
    if saved is None:
        return State()
    state, tensors = saved
    with telling_of_damage(folder):
        for name, module in learner.modules().items():
            module.load_state_dict(tensors[name])
        learner.optimizer.load_state_dict(tensors["optimizer"])
    say(f"going on after step {state.step} of {learner.steps}")
    return state


def _write_outcome(plan: Plan, recipe: Recipe, base: Base, state: State, folder: Path, devices: Devices) -> None:
    """The chosen weights as a checkpoint folder with its record and card; then the state has done its work."""
    if state.best is not None:
        base.model.load_state_dict(load_best(folder))
    scores = {} if state.best is None else {"dev": state.best.dev}
    scores |= {name: sts_score(base.encoder, pairs) for name, pairs in plan.tests.items()}
    result = {
        "seed": recipe.training.seed,
        "scores": scores,
        "best_step": state.step if state.best is None else state.best.step,
        "curve": [asdict(point) for point in state.curve],
        "seconds": state.seconds,
        "recipe": recipe.plain(),
        "base": base.checkpoint.spec.source,
        "base_weights_sha256": base.checkpoint.spec.weights_sha256,
        "chain": ", ".join(str(record["type"]) for record in base.model.describe()),
        "dim": base.model.dim,
        "max_tokens": base.checkpoint.spec.max_tokens,
        "data": [_source_record(source) for source in plan.sources],
        "conditions": _conditions(devices),
    }
    with telling_of_failed_writes(folder), folder_written_aside(folder / MODEL_FOLDER) as aside:
        card = model_card(plan.name, [result], 0)
        save_checkpoint(aside, base.model.cpu(), base.checkpoint, base.unused_weights(), card)
        (aside / RESULT_FILE).write_text(json.dumps(result, indent=1), encoding="utf-8")
    for start in ("first", "fresh"):
        shutil.rmtree(folder / start, ignore_errors=True)
    drop_state(folder)


def _source_record(source: Source) -> dict[str, Any]:
    counts = {"examples": len(source.examples), "bad": len(source.bad), "unused": source.unused}
    return {"name": source.name, "rows": source.rows, **counts}


def _conditions(devices: Devices) -> dict[str, Any]:
    """What a repetition would have to have in common with this run, to give the same weights to the last bit."""
    return {
        "sentport": __version__,
        "torch": torch.__version__,
        "device": cpu_model() if devices.device.type == "cpu" else torch.cuda.get_device_name(devices.device),
        "processes": devices.processes,
        "threads": torch.get_num_threads(),
    }
