"""A model in training as a ``TextEncoder``: tokenises as the finished checkpoint will, and can be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from sentport.bundle import ModelSpec
from sentport.encoder import EncoderInfo
from sentport.engines.torch import TorchEngine
from sentport.inputs import check_dim, prompt_text, valid_rows
from sentport.modeling.sentence_model import SentenceModel
from sentport.scheduler import plan_batches, run_batches, unique_texts
from sentport.tokenizer import Tokenizer, Tokens


class ModelEncoder:
    """Texts to tokens, and to vectors of the model as it is at the moment.

    Args:
        model: The model; it is put into evaluation mode for each call and back into training mode after it.
        spec: What it is.
        tokenizer: Its tokenizer.
        device: Where it computes.
    """

    def __init__(self, model: SentenceModel, spec: ModelSpec, tokenizer: Tokenizer, device: torch.device) -> None:
        self.model, self.spec, self.tokenizer = model, spec, tokenizer
        self._engine = TorchEngine(model, torch.get_num_threads(), device.type)

    @property
    def info(self) -> EncoderInfo:
        """What it is; its fingerprint names no space, since the next step leads to another one."""
        return EncoderInfo(
            dim=self.model.dim,
            max_tokens=self.tokenizer.max_tokens,
            prompts=dict(self.spec.prompts),
            default_prompt=self.spec.default_prompt,
            similarity=self.spec.similarity,
            fingerprint="in training",
            engine=self._engine.name,
            precision=self._engine.precision,
            layout=self._engine.layout,
            device=self._engine.device,
            sessions=self._engine.sessions,
            threads=self._engine.threads,
        )

    def tokens(self, texts: Sequence[str], prompt: str | None = None) -> Tokens:
        """Tokens of texts under a prompt, cut to the limit."""
        prefix = prompt_text(self.spec.prompts, self.spec.default_prompt, prompt)
        tokens = self.tokenizer.encode([prefix + text for text in valid_rows(texts)])
        if not (prefix and self.model.uses_pooling_mask):
            return tokens
        return replace(tokens, unpooled=np.full(len(texts), self.tokenizer.prompt_tokens(prefix), np.int64))

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> NDArray[np.float32]:
        """Vectors ``[n, dim]`` float32, rows in input order."""
        width = check_dim(dim, self.model.dim)
        distinct, inverse = unique_texts(list(texts))
        tokens = self.tokens(distinct, prompt)
        was_training = self.model.training
        self.model.eval()
        try:
            plan = plan_batches(tokens.lengths, token_budget=self._engine.token_budget)
            vectors = run_batches(self._engine, tokens, plan, self.model.dim)[inverse, :width]  # [n, width]
        finally:
            self.model.train(was_training)
        if width < self.model.dim and self.spec.normalized:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors
