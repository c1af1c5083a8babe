"""Checkpoints without modules.json: pooling by name, with SimCSE's poolers and head.

SimCSE trains with a head (linear, tanh) on the first token. Its unsupervised models are used without it
(``cls_before_pooler``), its supervised ones with it (``cls_after_pooler``). Which one a checkpoint is, its own
configuration or the user says; a folder's name never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sentport.errors import CheckpointError
from sentport.modeling.chain import ChainModule, Dense, LayerMean
from sentport.modeling.pooling import Pooling, PoolingMode, parse_modes
from sentport.modeling.source_files import read_json
from sentport.modeling.weights import read_weights

_BEFORE, _AFTER = "cls_before_pooler", "cls_after_pooler"
_LAYERS = {"avg_first_last": (1, -1), "avg_top2": (-2, -1)}  # the authors' first layer is the one after the embeddings
_OWN_HEAD = "mlp.dense."
# The authors' converter renames the head to BERT's own pooler, where transformers then finds it.
_HEADS = (_OWN_HEAD, "pooler.dense.", "bert.pooler.dense.", "roberta.pooler.dense.")
_BOTH_WAYS = f"--pooling {_BEFORE} (unsupervised: without the head) or --pooling {_AFTER} (supervised: with it)"


def plain_chain(folder: Path, hidden: int, pooling: str | None) -> list[ChainModule]:
    """The chain of a checkpoint that saves none.

    Args:
        folder: The checkpoint.
        hidden: Width of its token vectors.
        pooling: One or more modes joined by ``+``, or ``cls_before_pooler``, ``cls_after_pooler``,
            ``avg_first_last``, ``avg_top2``; None = as its config.json says.

    Raises:
        CheckpointError: When nothing says how to pool, or what is asked for is not there.
    """
    saved = _saved_pooling(folder)
    if saved is not None and pooling not in (None, saved):
        raise CheckpointError(f"{folder} says itself how to pool (pooler_type in config.json); leave --pooling out")
    name = pooling or saved
    if name is None:
        raise CheckpointError(f"{folder} {_what_is_missing(folder)}")
    if name in _LAYERS:
        return [LayerMean(_LAYERS[name]), Pooling(hidden, (PoolingMode.MEAN,))]
    if name in (_BEFORE, _AFTER):
        pooled = Pooling(hidden, (PoolingMode.CLS,))
        return [pooled] if name == _BEFORE else [pooled, _head(folder, hidden)]
    modes = parse_modes(name.split("+"), "--pooling", also=(_BEFORE, _AFTER, *_LAYERS))
    if PoolingMode.CLS in modes and _has_own_head(folder):
        raise CheckpointError(
            f"{folder} has SimCSE's head, so --pooling {name} could mean two things; say {_BOTH_WAYS}"
        )
    return [Pooling(hidden, modes)]


def pooling_name(modules: Sequence[Mapping[str, Any]]) -> str:
    """The ``pooling`` that gives a plain checkpoint the chain which a bundle records."""
    records = {record["type"]: record for record in modules}
    if "LayerMean" in records:
        layers = tuple(records["LayerMean"]["layers"])
        return next(name for name, wanted in _LAYERS.items() if wanted == layers)
    if "Dense" in records:
        return _AFTER
    names = records["Pooling"]["modes"]
    return _BEFORE if list(names) == ["cls"] else "+".join(names)


def _saved_pooling(folder: Path) -> str | None:
    """What config.json says under the names of the authors' own training arguments."""
    config = read_json(folder / "config.json", missing_ok=True) or {}
    kind = config.get("pooler_type")
    if kind is None:
        return None
    names = {"cls": _BEFORE if config.get("mlp_only_train") else _AFTER, "avg": "mean", _BEFORE: _BEFORE}
    names.update({name: name for name in _LAYERS})
    if kind not in names:
        raise CheckpointError(f"{folder} has pooler_type {kind!r} in config.json; known: {', '.join(names)}")
    return names[kind]


def _what_is_missing(folder: Path) -> str:
    if _has_own_head(folder):
        return f"has SimCSE's head, but does not say whether it takes part; say {_BOTH_WAYS}"
    return (
        "is a plain Hugging Face checkpoint, which does not say how to pool; add --pooling mean (or cls, max, …), "
        f"as its model card says; for SimCSE {_BOTH_WAYS}"
    )


def _has_own_head(folder: Path) -> bool:
    return bool(read_weights(folder, (_OWN_HEAD,)))


def _head(folder: Path, hidden: int) -> Dense:
    held = read_weights(folder, _HEADS)
    found = next((prefix for prefix in _HEADS if f"{prefix}weight" in held), None)
    if found is None:
        raise CheckpointError(
            f"{folder} has no head ({_HEADS[0]}weight or {_HEADS[1]}weight) for --pooling {_AFTER}; "
            f"expected one, or --pooling {_BEFORE}"
        )
    head = Dense(hidden, hidden, True, nn.Tanh())
    head.linear.load_state_dict({name: held[f"{found}{name}"] for name in ("weight", "bias")})
    return head
