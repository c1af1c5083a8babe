"""Rules on ensembles: every tensor is made once, used, and of one kind wherever it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from triton_repo.lint import Model, Problem
from triton_repo.lint_config import type_name


class End(NamedTuple):
    """Where a tensor of an ensemble meets a step, or the ensemble's own inputs and outputs.

    Attributes:
        field: The field of the config.
        tensor: The ensemble's name for it.
        declared: How the model declares it.
        batched: Whether that model has a batch axis in front.
    """

    field: str
    tensor: str
    declared: Any
    batched: bool


def step_models(model: Model) -> Iterator[Problem]:
    """An ensemble has steps, and they are models of the repository."""
    if model.backend == "ensemble" and not _steps(model):
        yield Problem("ensemble_scheduling.step", "is not there", "add the steps")
    for number, step in enumerate(_steps(model)):
        if step.model_name not in model.others:
            field = f"ensemble_scheduling.step[{number}].model_name"
            yield Problem(field, f"{step.model_name!r} is not in the repository", f"known: {', '.join(model.others)}")


def step_maps(model: Model) -> Iterator[Problem]:
    """Maps name inputs and outputs that the step's model has, and all of its inputs."""
    for number, step in enumerate(_steps(model)):
        other = model.others.get(step.model_name)
        if other is None:
            continue
        for side in ("input", "output"):
            known = {each.name: each for each in getattr(other.config, side)}
            given = getattr(step, f"{side}_map")
            field = f"ensemble_scheduling.step[{number}].{side}_map"
            for key in sorted(set(given) - set(known)):
                yield Problem(field, f"{step.model_name} has no {side} {key!r}", f"known: {', '.join(known)}")
            for key in sorted(set(known) - set(given)):
                if side == "input" and not known[key].optional:
                    yield Problem(field, f"lacks {key!r}, an input of {step.model_name}", "map it")


def dangling(model: Model) -> Iterator[Problem]:
    """What is used is made, by a step or by the request; this includes the ensemble's outputs."""
    made = {end.tensor for end in _made(model)} | _mapped(model, "output")
    for end in _used(model):
        if end.tensor not in made:
            yield Problem(end.field, f"tensor {end.tensor!r} is made by no step", "map a step's output to it")


def unused(model: Model) -> Iterator[Problem]:
    """What is made is used, by a step or by the answer."""
    used = {each.name for each in model.config.output} | _mapped(model, "input")
    for number, step in enumerate(_steps(model)):
        for key, tensor in step.output_map.items():
            if tensor not in used:
                field = f"ensemble_scheduling.step[{number}].output_map.{key}"
                yield Problem(field, f"tensor {tensor!r} is used by nothing", "take it out, or make it an output")
    for each in model.config.input if _steps(model) else ():
        if each.name not in _mapped(model, "input"):
            yield Problem(f"input.{each.name}", "is used by no step", "map it to a step's input, or take it out")


def made_twice(model: Model) -> Iterator[Problem]:
    """No two steps make the same tensor."""
    counts = Counter(tensor for step in _steps(model) for tensor in step.output_map.values())
    counts.update(each.name for each in model.config.input)
    for tensor in (each for each, count in counts.items() if _steps(model) and count > 1):
        yield Problem("ensemble_scheduling", f"tensor {tensor!r} is made {counts[tensor]} times", "rename one of them")


def cycle(model: Model) -> Iterator[Problem]:
    """No ensemble is a step of its own, and no tensor is made from itself."""
    if model.folder.name in _below(model):
        told = f"leads back to {model.folder.name}, through models that are steps of each other"
        yield Problem("ensemble_scheduling.step", told, "take that step out")
    made, steps = _mapped(model, "output"), _steps(model)
    ready = _mapped(model, "input") - made
    while able := [step for step in steps if ready.issuperset(step.input_map.values())]:
        ready |= {tensor for step in able for tensor in step.output_map.values()}
        steps = [step for step in steps if step not in able]
    if steps:
        told = f"tensor {min(made - ready)!r} is made from itself" if made - ready else "steps wait for each other"
        yield Problem("ensemble_scheduling", told, "break the circle of its steps")


def kinds(model: Model) -> Iterator[Problem]:
    """A tensor has one type and fitting dims at all its ends."""
    made = {end.tensor: end for end in _made(model)}
    for end in _used(model):
        source = made.get(end.tensor)
        if source is None:
            continue
        if source.declared.data_type != end.declared.data_type:
            types = [type_name(each.declared.data_type) for each in (end, source)]
            yield Problem(
                end.field, f"tensor {end.tensor!r} is {types[0]} here and made as {types[1]}", "make them one"
            )
        if not _fit(_shape(end), _shape(source)):
            told = f"tensor {end.tensor!r} has dims {_shape(end)} here and is made with {_shape(source)}"
            yield Problem(end.field, told, "make them one")


def batch(model: Model) -> Iterator[Problem]:
    """No step takes smaller batches than the ensemble."""
    for number, step in enumerate(_steps(model)):
        other = model.others.get(step.model_name)
        most = model.config.max_batch_size
        if other is not None and other.config.max_batch_size < most:
            told = f"takes {other.config.max_batch_size} rows, the ensemble {most}"
            yield Problem(
                f"ensemble_scheduling.step[{number}]", f"{step.model_name} {told}", "make the ensemble's less"
            )


def instances(model: Model) -> Iterator[Problem]:
    """An ensemble has no instances of its own."""
    if model.backend == "ensemble" and model.config.instance_group:
        yield Problem("instance_group", "is there, but an ensemble has no instances", "move it to a step's model")


def _steps(model: Model) -> list[Any]:
    return list(model.config.ensemble_scheduling.step)


def _below(model: Model) -> set[str]:
    """The models that an ensemble's steps lead to."""
    found: set[str] = set()
    waiting = [step.model_name for step in _steps(model)]
    while waiting:
        name = waiting.pop()
        if name not in found and name in model.others:
            found.add(name)
            waiting += [step.model_name for step in _steps(model.others[name])]
    return found


def _mapped(model: Model, side: str) -> set[str]:
    return {tensor for step in _steps(model) for tensor in getattr(step, f"{side}_map").values()}


def _made(model: Model) -> list[End]:
    return [*_own(model, "input"), *_at_steps(model, "output")]


def _used(model: Model) -> list[End]:
    return [*_own(model, "output"), *_at_steps(model, "input")]


def _own(model: Model, side: str) -> list[End]:
    if not _steps(model):
        return []
    batched = model.config.max_batch_size > 0
    return [End(f"{side}.{each.name}", each.name, each, batched) for each in getattr(model.config, side)]


def _at_steps(model: Model, side: str) -> list[End]:
    ends: list[End] = []
    for number, step in enumerate(_steps(model)):
        other = model.others.get(step.model_name)
        known = {} if other is None else {each.name: each for each in getattr(other.config, side)}
        for key, tensor in getattr(step, f"{side}_map").items():
            if other is not None and key in known:
                field = f"ensemble_scheduling.step[{number}].{side}_map.{key}"
                ends.append(End(field, tensor, known[key], other.config.max_batch_size > 0))
    return ends


def _shape(end: End) -> list[int]:
    return [*([-1] if end.batched else []), *end.declared.dims]


def _fit(one: list[int], other: list[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
