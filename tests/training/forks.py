"""Runs of ``sentport train`` that are killed, meet a full disk, or share their batches.

Run as a script, so that every run is a process of its own: forked from one that has imported everything and computed
nothing. Each scenario prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

# Everything that a run imports, so that a fork has it.
import training.run  # noqa: F401
from sentport.cli import main
from training.devices import Devices
from training.loop import RESULT_FILE
from training.run import make_plan
from training.setup import make_learner, open_base
from training.step import train_step

STATE_LIMIT_BYTES = 20_000  # less than a state has, more than all that is written before the first


def fork(work: Callable[[], int]) -> int:
    """Wait status of some work in a process of its own."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    os._exit(work())


class Countdown:
    """Does something before the n-th change to a folder's files that Python makes, all or renames alone."""

    def __init__(self, folder: Path, changes: int, action: Callable[[], None], *, renames: bool) -> None:
        self.folder, self.left, self.action, self.renames = str(folder), changes, action, renames

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "os.rename"
            or (not self.renames and event in ("os.remove", "os.mkdir", "os.rmdir"))
            or (not self.renames and event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        ):
            self.count(arguments[0])

    def count(self, path: Any) -> None:
        if str(path).startswith(self.folder):
            self.left -= 1
            if self.left == 0:
                self.action()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STATE_LIMIT_BYTES, STATE_LIMIT_BYTES))


def run(command: list[str], countdown: Countdown | None = None) -> int:
    def work() -> int:
        if countdown is not None:
            sys.addaudithook(countdown)
        return main(command)

    return fork(work)


def outcome(out: Path) -> dict[str, Any]:
    """What must be the same of two runs: weights and curve, but for the time it took."""
    weights = {str(file.relative_to(out)): file.read_bytes().hex() for file in sorted(out.rglob("*.safetensors"))}
    record = json.loads((out / RESULT_FILE).read_text())
    for seed in record["seeds"]:
        del seed["seconds"]
    return {"weights": weights, "record": record, "files": sorted(str(f.relative_to(out)) for f in out.rglob("*"))}


def command_for(recipe: str, data: str, out: Path, seeds: int = 1) -> list[str]:
    return [
        "train",
        recipe,
        "--data",
        data,
        "--out",
        str(out),
        "--threads",
        "1",
        "--seeds",
        str(seeds),
        "--set",
        "training.steps=4",
        "-q",
    ]


def kills(recipe: str, data: str, folder: Path, *, renames: bool) -> dict[str, Any]:
    """Kill before change 1, 2, 3 … until a run gets through; each is resumed and must end like one left alone."""
    seeds = 1 if renames else 2
    assert run(command_for(recipe, data, folder / "whole" / "out", seeds)) == 0
    wanted = outcome(folder / "whole" / "out")
    where = folder / "killed"
    for change in range(1, 2000):
        where.mkdir()
        command = command_for(recipe, data, where / "out", seeds)
        status = run(command, Countdown(where, change, kill, renames=renames))
        if status == 0:
            return {"killed": change - 1}
        assert os.WIFSIGNALED(status), f"ended by itself at change {change}: {status}"
        if (where / "out").exists():
            assert outcome(where / "out") == wanted, f"half an output at change {change}"
        else:
            assert run(command) == 0, f"does not resume at change {change}"
            assert outcome(where / "out") == wanted, f"another outcome at change {change}"
            assert [path.name for path in where.iterdir()] == ["out"], f"leftovers at change {change}"
        shutil.rmtree(where)
    raise AssertionError("a run has no end")


def full_disk(recipe: str, data: str, folder: Path) -> dict[str, Any]:
    """The disk fills up after the second rename, a state among those before: that one stays, and is gone on from."""
    where = folder / "full"
    where.mkdir()
    command = command_for(recipe, data, where / "out")
    status = run(command, Countdown(where, 3, fill_disk, renames=True))
    left = sorted(path.name for path in (where / ".out.job" / "seed-1").iterdir())
    assert not (where / "out").exists()
    assert run(command) == 0
    assert outcome(where / "out") == outcome(folder / "whole" / "out")
    return {"exit": os.WEXITSTATUS(status), "left": left}


def gradients(recipe: str, data: str, out: Path, threads: int = 1) -> int:
    """The gradients of a first step, summed over the processes, as the first one's file."""
    devices = Devices("cpu")
    torch.set_num_threads(threads)
    plan = make_plan(recipe, Path(data), ("views.dropout=0.0", "training.clip_norm=0.0"), lambda _: None)
    base = open_base(plan.recipe, str(plan.recipe.base), devices, lambda _: None)
    learner = make_learner(plan.recipe, base, plan.sources, devices, lambda _: None)
    found: dict[str, torch.Tensor] = {}

    def keep() -> None:
        for name, module in learner.modules().items():
            found.update(
                {
                    f"{name}.{key}": value.grad.clone()
                    for key, value in module.named_parameters()
                    if value.grad is not None
                }
            )

    learner.optimizer.step = keep  # type: ignore[method-assign,assignment]
    loss = train_step(learner, 0)
    if devices.is_first:
        torch.save({"loss": loss, "gradients": found}, out)
    return 0


def in_two(work: Callable[[], int]) -> None:
    """The same work in two processes that know of each other, as ``accelerate launch`` starts them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = []
    for process in range(2):
        child = os.fork()
        if not child:
            names = {
                "RANK": process,
                "LOCAL_RANK": process,
                "WORLD_SIZE": 2,
                "LOCAL_WORLD_SIZE": 2,
                "MASTER_PORT": port,
            }
            os.environ.update({name: str(value) for name, value in names.items()})
            os.environ.update({"MASTER_ADDR": "localhost", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"})
            os._exit(work())
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert statuses == [0, 0], statuses


def processes(recipes: list[str], data: str, folder: Path) -> dict[str, Any]:
    """Gradients of one process and of two over the same batch, and a whole training by two."""
    worst = 0.0
    for recipe in recipes:
        assert fork(lambda r=recipe: gradients(r, data, folder / "one.pt")) == 0  # type: ignore[misc]
        in_two(lambda r=recipe: gradients(r, data, folder / "two.pt"))  # type: ignore[misc]
        one, two = (torch.load(folder / name) for name in ("one.pt", "two.pt"))
        assert abs(one["loss"] - two["loss"]) < 1e-5 * abs(one["loss"]), (recipe, one["loss"], two["loss"])
        assert one["gradients"].keys() == two["gradients"].keys()
        largest = max(float(value.abs().max()) for value in one["gradients"].values())
        for name, value in one["gradients"].items():
            worst = max(worst, float((value - two["gradients"][name]).abs().max()) / largest)
    out = folder / "by-two"
    in_two(lambda: main(command_for(recipes[0], data, out)))
    record = json.loads((out / RESULT_FILE).read_text())
    return {
        "worst": worst,
        "processes": record["seeds"][0]["conditions"]["processes"],
        "weights": list(load_file(out / "model.safetensors")) != [],
    }


if __name__ == "__main__":
    scenario, data, folder, *recipes = sys.argv[1:]
    where = Path(folder)
    if scenario == "kills":
        print(json.dumps(kills(recipes[0], data, where, renames=False)))
    else:
        print(json.dumps(kills(recipes[0], data, where, renames=True)))
        print(json.dumps(full_disk(recipes[0], data, where)))
        print(json.dumps(processes(recipes, data, where)))
