"""Whether a plan may serve: its machine is this one, and its layer types and vectors are what they have to be."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import Bundle
from sentport.errors import EngineError, GateError
from sentport.gate import check, limits_of
from sentport.plans import BUILDERS, PASSED, REFUSED, UNVERIFIED, Plan, write_record
from sentport.suite import load_suite
from sentport.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Run = Callable[[TokenBatch], NDArray[np.float32]]

# How the inspector writes types, in small letters; the first that a description holds counts.
_WORDS = (
    *(("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("half", "fp16"), ("float16", "fp16")),
    *(("int8", "int8"), ("fp32", "fp32"), ("float", "fp32")),
)


def refuse_other_machines(bundle: Bundle, plan: Plan, capability: tuple[int, int], version: str) -> None:
    """Raises EngineError unless this GPU and this version of the library run the plan."""
    if not plan.runs_on_device(capability):
        raise EngineError(
            f"{bundle.path / plan.file} is for compute capability {', '.join(plan.runs_on)}, this GPU has "
            f"{'.'.join(map(str, capability))}; build it here: {plan.rebuild(bundle, same_devices=False)}"
        )
    newer = (
        plan.newer_versions
        and _parts(version)[0] == _parts(plan.version)[0]
        and _parts(version) >= _parts(plan.version)
    )
    if version != plan.version and not newer:
        raise EngineError(
            f"{bundle.path / plan.file} was built by {BUILDERS[plan.builder]} {plan.version}, installed is {version}; "
            f"build it here: {plan.rebuild(bundle)}"
        )


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def was_checked(plan: Plan, device: str, version: str) -> bool:
    """Whether the plan was checked on this kind of GPU with this version, and passed or failed there."""
    parity = plan.parity
    return parity["state"] != UNVERIFIED and (parity["device"], parity["version"]) == (device, version)


def refuse_wrong(bundle: Bundle, plan: Plan, device: str, version: str) -> None:
    """Raises GateError for a plan that was checked here and is wrong."""
    if plan.parity["state"] == REFUSED and was_checked(plan, device, version):
        raise _refusal(bundle, plan, device, plan.parity["reason"])


def check_plan(bundle: Bundle, plan: Plan, engine: Any, trt: Any, device: str, run: Run) -> Plan:
    """Check layer types and vectors, and write the result into the plan's JSON.

    Args:
        bundle: The bundle, whose golden suite is the measure.
        plan: The plan.
        engine: The same, deserialised.
        trt: The library.
        device: Name of the GPU, for the record.
        run: Gives the plan's vectors.

    Raises:
        GateError: When something is wrong; the JSON then says so too.
    """
    logger.info("checking %s on %s", plan.file, device)
    where = {"sha256": plan.sha256, "device": device, "version": str(trt.__version__)}
    try:
        types = check_layers(plan, engine, trt)
        suite = load_suite(bundle.golden_file())
        suite = suite.without_types() if plan.layout == "packed" else suite
        tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
        parity = check(run, suite, tokenizer, limits_of(plan.precision, bundle.spec.architecture))
    except GateError as error:
        _write(bundle, replace(plan, parity={"state": REFUSED, **where, "reason": str(error)}))
        raise _refusal(bundle, plan, device, str(error)) from error
    checked = replace(plan, parity={"state": PASSED, **where, "layers": types, **asdict(parity)})
    _write(bundle, checked)
    return checked


def check_layers(plan: Plan, engine: Any, trt: Any) -> dict[str, int]:
    """Tensors between the engine's layers by type, as its inspector tells them.

    Raises:
        GateError: When there are some, and none in the plan's precision, or an fp32 plan has some in fewer bits.
    """
    inspector = engine.create_engine_inspector()
    described = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    types = layer_types(described)
    if not types:
        logger.warning("%s: the library does not tell the types of its layers; its vectors decide", plan.file)
        return types
    lower = types.keys() & {"fp16", "bf16", "int8"}
    if plan.precision not in types or (plan.precision == "fp32" and lower):
        found = ", ".join(f"{count} in {name}" for name, count in types.items())
        raise GateError(f"it was built for {plan.precision}, and its layers work on tensors {found}")
    return types


def layer_types(described: Mapping[str, Any]) -> dict[str, int]:
    """Outputs of layers by type, from the inspector's JSON; integers that are no int8 are left out."""
    found: Counter[str] = Counter()
    for layer in described.get("Layers", []):
        for tensor in layer.get("Outputs", []) if isinstance(layer, dict) else []:
            text = str(tensor.get("Format/Datatype", tensor.get("Datatype", ""))).lower()
            kind = next((name for word, name in _WORDS if word in text), None)
            if kind is not None:
                found[kind] += 1
    return dict(sorted(found.items()))


def _refusal(bundle: Bundle, plan: Plan, device: str, reason: str) -> GateError:
    return GateError(
        f"{bundle.path / plan.file} is wrong on {device} and is not used: {reason}; build it again: "
        f"{plan.rebuild(bundle)}"
    )


def _write(bundle: Bundle, plan: Plan) -> None:
    try:
        write_record(bundle, plan)
    except OSError as error:  # a bundle that nobody may write is checked at every load
        logger.warning(
            "the check of %s cannot be kept (%s) and is repeated at the next load", plan.file, error.strerror
        )
