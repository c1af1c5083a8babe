"""A tiny base, tiny data in every format, and a tiny recipe over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import build_checkpoint

ANIMALS, VERBS, PLACES = (
    ("cat", "dog"),
    ("sat", "ran"),
    ("on the mat", "in the park", "on the red mat in the blue park"),
)
SENTENCES = [
    f"{article} {colour} {animal} {verb} {place}"
    for article, colour, animal, verb, place in itertools.product(("a", "the"), ("red", "blue"), ANIMALS, VERBS, PLACES)
]  # 48 of them


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices are no work for two."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of width 32, mean pooling, no Normalize."""
    return build_checkpoint(tmp_path_factory.mktemp("base") / "base", normalize=False)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a file of each format."""
    folder = tmp_path_factory.mktemp("data")
    pairs = list(zip(SENTENCES, SENTENCES[7:] + SENTENCES[:7], strict=True))
    shared = [len(set(first.split()) & set(second.split())) for first, second in pairs]
    labels = ("entailment", "neutral", "contradiction")
    rows = {
        "sts": [(score * 5 / max(shared), *pair) for score, pair in zip(shared, pairs, strict=True)],
        "nli": [(labels[place % 3], SENTENCES[place // 3], second) for place, (_, second) in enumerate(pairs)],
        "triplets": [
            (*pair, third, "made up") for pair, third in zip(pairs, SENTENCES[20:] + SENTENCES[:20], strict=True)
        ],
        "pairs": pairs,
        "groups": [SENTENCES[start : start + 5] for start in range(0, 45, 5)],
        "sentences": [(sentence,) for sentence in SENTENCES],
    }
    for name, lines in rows.items():
        text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return folder


RECIPE = """
base = "{base}"

[[data]]
format = "{format}"
files = ["{format}.tsv"]

[objective]
kind = "{kind}"

[training]
batch_size = 8
steps = 6
learning_rate = 1e-3
checkpoint_every = 2
{training}

[evaluation]
dev = "sts.tsv"
"""


@pytest.fixture
def recipe_file(base: Path, tmp_path: Path) -> Callable[..., str]:
    """Writes a recipe that takes a second to train; gives its path."""

    def write(
        name: str = "tiny", format_: str = "sentences", kind: str = "contrastive", *, training: str = "", more: str = ""
    ) -> str:
        file = tmp_path / f"{name}.toml"
        text = RECIPE.format(base=base, format=format_, kind=kind, training=training) + more
        file.write_text(text, encoding="utf-8")
        return str(file)

    return write
