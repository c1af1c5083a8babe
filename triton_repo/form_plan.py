"""Form ``plan``: a python tokenizer, and a TensorRT plan on Triton's tensorrt backend, as one ensemble.

```
TEXT ─▶ NAME_tokens (python) ─▶ input_ids, … [n, edge] ─▶ NAME_plan (tensorrt) ─▶ EMBEDDING
                             └▶ TOKENS, TRUNCATED, INFO
```

The first step pads each request to the edge of its profile. Triton puts requests of one shape together, so all that
fall into one profile share an execution, and each edge is a profile of the plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentport.bundle import Bundle, GraphRecord
from sentport.errors import SentportError
from sentport.plans import PASSED, Plan, plan_file, read_plans
from triton_repo import config, form_ragged, settings, wire
from triton_repo.config import ModelFolder
from triton_repo.form_text import Choice

DEVICES = ("cuda",)
PLAN_FILE = "model.plan"
_STEP_INPUTS = (wire.INPUT_IDS, wire.ATTENTION_MASK, wire.TOKEN_TYPE_IDS, wire.POOLING_MASK)


def graph_with_plan(bundle: Bundle, precision: str) -> GraphRecord:
    """The padded graph of a precision, of those that have a plan for this form.

    Raises:
        SentportError: When none has one, as ``Bundle.select`` says.
    """
    built = {plan.graph for plan in _plans(bundle)}
    if not built:
        raise SentportError(
            f"{bundle.path} has no plan of layout padded by TensorRT, which Triton's backend is: "
            f"`sentport build {bundle.path} --builder trt --layout padded --corpus FILE` makes one on a GPU"
        )
    held = replace(bundle, graphs=tuple(graph for graph in bundle.graphs if graph.file in built))
    return held.select("padded", bundle.precision_of(precision), "cuda", ("portable",))


def models(choice: Choice) -> dict[str, ModelFolder]:
    """The three models of this form, by their names.

    Raises:
        SentportError: When the plan's vectors were never compared with the source's, or are wrong.
    """
    plan = checked_plan(choice.bundle, choice.graph)
    most = min(profile.rows.most for profile in plan.profiles)
    batching = replace(choice.batching, max_batch=min(choice.batching.max_batch, most))
    choice = replace(choice, batching=batching, engine="tensorrt")
    edges = [profile.tokens.most for profile in plan.profiles]
    inputs = [name for name in _STEP_INPUTS if name in {tensor.name for tensor in choice.graph.inputs}]
    tokens, last = f"{choice.name}_tokens", f"{choice.name}_plan"
    return {
        choice.name: ModelFolder(form_ragged.ensemble(choice, tokens, last, inputs)),
        tokens: form_ragged.tokens_folder(choice, tokens, inputs, {settings.EDGES: ",".join(map(str, edges))}),
        last: ModelFolder(
            _plan_config(choice, last, inputs, edges),
            files={PLAN_FILE: plan_file(choice.bundle, plan)},
            warmup={_warmup_file(edge): config.ids_file(np.ones(edge, np.int64)) for edge in edges},
        ),
    }


def checked_plan(bundle: Bundle, graph: GraphRecord) -> Plan:
    """The plan of a graph that passed its check on a GPU.

    Raises:
        SentportError: When none did: Triton would serve whatever it gives.
    """
    plans = [plan for plan in _plans(bundle) if plan.graph == graph.file]
    passed = [plan for plan in plans if plan.parity["state"] == PASSED]
    if not passed:
        raise SentportError(
            f"{plans[0].file} is {plans[0].parity['state']}, and Triton would serve whatever it gives; check it on its "
            f"GPU first: sentport verify {bundle.path} --engine tensorrt"
        )
    if len(passed) > 1:
        names = ", ".join(plan.file for plan in passed)
        raise SentportError(f"{names} are all of {graph.file}; keep the one for the server's GPU")
    return passed[0]


def _plans(bundle: Bundle) -> list[Plan]:
    return [plan for plan in read_plans(bundle) if plan.builder == "trt" and plan.layout == "padded"]


def _plan_config(choice: Choice, name: str, inputs: list[str], edges: list[int]) -> str:
    output = choice.graph.outputs[0]
    lines = [
        f"name: {config.quoted(name)}",
        'platform: "tensorrt_plan"',
        f"max_batch_size: {choice.batching.max_batch}",
        *(config.tensor("input", each, "INT64", [-1]) for each in inputs),
        config.tensor("output", output.name, "FP32", [choice.bundle.spec.dim]),
        # One instance with all profiles: the backend takes the one whose best shape is nearest to a request's.
        config.instances("gpu", choice.batching, len(edges)),
        *config.queue(choice.batching, prefer_full=True),  # what profiles have tactics for
        *config.parameters({settings.PART_OF: choice.name}),
        *(
            config.warmup_sample(f"edge-{edge}", {each: ("INT64", [edge], _warmup_file(edge)) for each in inputs})
            for edge in edges
        ),
    ]
    return "\n".join(lines) + "\n"


def _warmup_file(edge: int) -> str:
    return f"ones-{edge}"
