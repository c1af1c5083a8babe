"""Minimal broken models, each of which breaks one rule of the linter: by rule, what is wrong and how to make it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "A").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", each)]) for each in given]
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "B" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  {
    model_name: "echo" model_version: -1
    input_map { key: "A" value: "IN" }
    output_map { key: "B" value: "OUT" }
  }
] }
"""
ONE_MORE_STEP = """  },
  {
    model_name: "echo" model_version: -1
    input_map { key: "A" value: "IN" }
    output_map { key: "B" value: "%s" }
  }"""
# As the first of its rule, which is its name: a step of itself.
STEP = ENSEMBLE.split("step [")[1]
SELF = (
    STEP,
    STEP.replace("echo", "ensemble-cycle-0").replace('key: "A"', 'key: "IN"').replace('key: "B"', 'key: "OUT"'),
)


@dataclass(frozen=True)
class Broken:
    """A model with one fault.

    Attributes:
        old: What of the good config is replaced ...
        new: ... and by what.
        config: The good config.
        script: Its model.py; None = it has none.
        files: Further files of its folder.
    """

    old: str = ""
    new: str = ""
    config: str = CONFIG
    script: str | None = ECHO
    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the model's folder."""
        assert self.old in self.config
        folder.mkdir()
        changed = self.config.replace(self.old, self.new, 1) if self.old else self.config + self.new
        (folder / "config.pbtxt").write_text(changed)
        if self.script is not None:
            (folder / "1").mkdir()
            (folder / "1" / "model.py").write_text(self.script)
        for name, data in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)


def ensemble(old: str, new: str) -> Broken:
    return Broken(old, new, ENSEMBLE, None, {"1/.keep": b""})


def warm(given: str, files: dict[str, bytes] | None = None, batch: int = 1) -> Broken:
    sample = f'model_warmup [ {{ name: "w" batch_size: {batch} {given} }} ]'
    return Broken(new=sample, files=files or {})


TENSOR = 'inputs { key: "A" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }'
FROM_FILE = TENSOR.replace("zero_data: true", 'input_data_file: "a"')
TEXT_CONFIG = CONFIG.replace("TYPE_INT32", "TYPE_STRING")
TEXT_FROM_FILE = FROM_FILE.replace("TYPE_INT32", "TYPE_STRING")

# Models that the server does not load, by rule.
REFUSED: dict[str, list[Broken]] = {
    "config-read": [Broken(new="bakend: 1"), Broken("KIND_CPU", "KIND_TPU")],
    "name": [Broken(new='name: "another"')],
    "version": [
        Broken(script=None),
        Broken(script=None, files={"01/model.py": ECHO.encode()}),
        Broken(new="version_policy { specific { versions: [ 3 ] } }"),
    ],
    "backend": [Broken('"python"', '"pyhton"'), Broken('backend: "python"', "", script=None, files={"1/.keep": b""})],
    "max-batch": [Broken("max_batch_size: 4", "max_batch_size: -1")],
    "tensor": [Broken('name: "A"', ""), Broken("data_type: TYPE_INT32", ""), Broken("dims: [ 1 ]", "")],
    "tensor-dims": [Broken("dims: [ 1 ]", "dims: [ 0 ]")],
    "preferred-batch": [Broken(new="dynamic_batching { preferred_batch_size: [ 8 ] }")],
    "priority": [
        Broken(new="dynamic_batching { priority_levels: 2 default_priority_level: 5 }"),
        Broken(new="dynamic_batching { priority_levels: 2 }"),
    ],
    "instance-kind": [Broken("KIND_CPU", "KIND_GPU"), Broken("KIND_CPU", "55")],
    "warm-up": [
        warm(""),
        warm(TENSOR.replace("INT32", "FP32")),
        warm(TENSOR.replace("[ 1 ]", "[ 2 ]")),
        warm(FROM_FILE),
        warm(FROM_FILE, {"warmup/a": b"123"}),
    ],
    "ensemble-step": [
        ensemble('"echo"', '"nobody"'),
        ensemble(ENSEMBLE[ENSEMBLE.index("ensemble_scheduling") :], ""),
    ],
    "ensemble-map": [
        ensemble("input_map {", 'input_map { key: "X" value: "IN" } input_map {'),
        ensemble('input_map { key: "A" value: "IN" }', ""),
        ensemble('key: "B"', 'key: "Y"'),
    ],
    "ensemble-dangling": [
        ensemble('output_map { key: "B" value: "OUT" }', ""),
        ensemble('key: "A" value: "IN"', 'key: "A" value: "IN" } input_map { key: "A" value: "LOST"'),
    ],
    "ensemble-unused": [
        ensemble("  }\n]", ONE_MORE_STEP % "LOST" + "\n]"),
        ensemble("input [", 'input [ { name: "MORE" data_type: TYPE_INT32 dims: [ 1 ] },'),
    ],
    "ensemble-twice": [ensemble("  }\n]", ONE_MORE_STEP % "OUT" + "\n]")],
    "ensemble-cycle": [
        ensemble(*SELF),
        ensemble("  }\n]", (ONE_MORE_STEP % "LOOP").replace('"IN"', '"LOOP"') + "\n]"),
    ],
    "ensemble-kind": [
        ensemble("TYPE_INT32", "TYPE_FP32"),
        ensemble('"OUT" data_type: TYPE_INT32 dims: [ 1 ]', '"OUT" data_type: TYPE_INT32 dims: [ 2 ]'),
    ],
    "ensemble-batch": [ensemble("max_batch_size: 4", "max_batch_size: 8")],
    "ensemble-instances": [
        Broken(new="instance_group [ { count: 1 } ]", config=ENSEMBLE, script=None, files={"1/.keep": b""})
    ],
    "script": [Broken(script="def broken(:"), Broken(script="class Model: ...")],
    "environment-file": [
        Broken(new='parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "/nowhere.tar.gz" } }')
    ],
}


# Of such a warm-up the server dies now and then, by a segmentation fault, where it refuses the others; so these two are
# not among those that it is handed.
CRASHES = {
    "batch_size": warm(TENSOR, batch=9),
    "input_data_file": Broken(
        new=warm(TEXT_FROM_FILE).new, config=TEXT_CONFIG, files={"warmup/a": struct.pack("<I", 9) + b"short"}
    ),
}


def write_all(repository: Path) -> dict[str, str]:
    """Write every model of ``REFUSED`` and the good one that ensembles use; the rule of each by its folder."""
    repository.mkdir(parents=True, exist_ok=True)
    Broken().write(repository / "echo")
    rules = {}
    for rule, models in REFUSED.items():
        for number, model in enumerate(models):
            name = f"{rule}-{number}"
            model.write(repository / name)
            rules[name] = rule
    return rules
