"""``python -m training.averaged FILE --data DIR``: how good is the mean of a sentence's word vectors?

The baseline of Reimers & Gurevych 2019 (table 1, "Avg. GloVe embeddings"), from a text file in GloVe's form. Words are
told apart as BERT's tokenizer does before it cuts them, in lower case; a word without a vector is left out. One JSON
record goes to stdout: Spearman's correlation x 100 on each STS task, and the mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from sentport.encoder import EncoderInfo
from sentport.errors import SentportError
from sentport.evaluation import Settings, evaluate
from sentport.inputs import check_dim
from training.fresh import Vectors, read_word_vectors


class AveragedWords:
    """Word vectors as a ``TextEncoder``.

    Args:
        file: A word and its numbers a line.
    """

    def __init__(self, file: Path) -> None:
        self._lower, self._split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
        self._vectors: Vectors = read_word_vectors(file)
        self._dim = len(next(iter(self._vectors.values())))

    @property
    def info(self) -> EncoderInfo:
        """What it is; it has no limit of length, and nothing runs but NumPy."""
        return EncoderInfo(
            dim=self._dim,
            max_tokens=sys.maxsize,
            prompts={},
            default_prompt=None,
            similarity="cosine",
            fingerprint="averaged words",
            engine="numpy",
            precision="fp32",
            layout="packed",
            device="cpu",
            sessions=1,
            threads=1,
        )

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> NDArray[np.float32]:
        """Vectors ``[n, dim]`` float32; zeros for a text without a known word."""
        width = check_dim(dim, self._dim)
        return np.stack([self._mean(text) for text in texts])[:, :width]

    def _mean(self, text: str) -> NDArray[np.float32]:
        words = (word for word, _ in self._split.pre_tokenize_str(self._lower.normalize_str(text)))
        known = [self._vectors[word] for word in words if word in self._vectors]
        return np.mean(known, axis=0) if known else np.zeros(self._dim, np.float32)


def main(argv: list[str] | None = None) -> int:
    """Score a file of word vectors."""
    parser = argparse.ArgumentParser(prog="python -m training.averaged", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, help="text file in GloVe's form")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data files")
    options = parser.parse_args(argv)
    try:
        found = evaluate(AveragedWords(options.file), ["sts"], Settings(options.data))
    except SentportError as error:
        sys.stderr.write(f"training.averaged: {error}\n")
        return error.exit_code
    scores = {task: score.score for task, score in found.items()}
    record = {"word_vectors": options.file.name, "scores": scores, "average": mean(scores.values())}
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
