"""What several peers share; it runs in their Pythons, so it imports no package outside of functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SORTED = "sorted by characters, {rows} rows"


class Counted:
    """A ``SentenceTransformer`` whose computed tokens are counted."""

    def __init__(self, model: Any) -> None:
        self.model, self.computed = model, 0
        model[0].register_forward_pre_hook(self._count)

    def encode(self, texts: list[str], rows: int) -> Any:
        """``[N, dim]``."""
        self.computed = 0
        return self.model.encode(texts, batch_size=rows, show_progress_bar=False)

    def _count(self, module: object, inputs: tuple[Any, ...]) -> None:
        self.computed += int(inputs[0]["input_ids"].numel())


class PooledLoop:
    """Tokenise, sort, pad, run, take the mean of the tokens, normalise.

    Args:
        tokenizer: Of transformers.
        run: Hidden states ``[B, T, D]`` of a batch as the tokenizer made it.
        limit: Longest text, in tokens.
    """

    def __init__(self, tokenizer: Any, run: Any, limit: int) -> None:
        self.tokenizer, self.run, self.limit, self.computed = tokenizer, run, limit, 0

    def encode(self, texts: list[str], rows: int) -> Any:
        """``[N, dim]``."""
        import numpy as np
        import torch

        encoded = self.tokenizer(texts, truncation=True, max_length=self.limit)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        order = sorted(range(len(texts)), key=lambda row: -lengths[row])
        self.computed, found = 0, []
        for start in range(0, len(order), rows):
            batch = {name: [values[row] for row in order[start : start + rows]] for name, values in encoded.items()}
            padded = self.tokenizer.pad(batch, return_tensors="pt")
            self.computed += padded["input_ids"].numel()
            with torch.inference_mode():
                states, mask = self.run(padded), padded["attention_mask"][..., None]
                pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
                found.append(torch.nn.functional.normalize(pooled.float()).numpy())
        vectors = np.concatenate(found)
        restored = np.empty_like(vectors)
        restored[order] = vectors
        return restored


def length_limit(checkpoint: str) -> int:
    """The checkpoint's own, as sentence-transformers saves it.

    Raises:
        ValueError: When the checkpoint's vectors are no normalised means, which is all that this loop makes.
    """
    modules = json.loads(Path(checkpoint, "modules.json").read_text(encoding="utf-8"))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    pooling = json.loads(Path(checkpoint, modules[1]["path"], "config.json").read_text(encoding="utf-8"))
    mean = pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode") == "mean")
    if kinds != ["Transformer", "Pooling", "Normalize"] or not mean:
        raise ValueError(f"this loop makes normalised means; the checkpoint is {', '.join(kinds)}")
    return int(json.loads(Path(checkpoint, "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"])
