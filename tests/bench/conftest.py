"""What tests of the benchmark share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Evaluation data of a few lines a file, in SENTPORT_DATA."""
    lines = {
        "sts_raw/STSBenchmark/test.tsv": ["4.0\ta man eats\ta man is eating"],
        "sts_raw/STSBenchmark/test.source.tsv": ["genre\tfile\t2012"],
        "captions/flickr8k_groups.tsv": ["a dog runs\ta dog is running"],
        "captions/flickr30k_groups.tsv": ["two birds\tbirds in a tree"],
        "unlabelled/wikipedia_sentences.txt": [f"word{n} of the {n}th sentence" for n in range(3000)],
        "nli/sick/test.tsv": ["neutral\ta man eats\ta woman eats soup"],
        "transfer/TREC/train.tsv": ["HUM\tWho was it ?", "DESC\tWhat is a question of more than eight words here ?"],
        "transfer/TREC/test.tsv": ["NUM\tHow many ?"],
    }
    for name, content in lines.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in content))
    monkeypatch.setenv("SENTPORT_DATA", str(tmp_path))
    return tmp_path
