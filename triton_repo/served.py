"""Which of our models a ``config.pbtxt`` describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_repo import settings
from triton_repo.requests import ServedModel

TEXT = "text"
TOKENS = "tokens"


def open_model(config: Mapping[str, Any], folder: Path) -> ServedModel:
    """Open the model of a configuration, as Triton hands it over, with the files in its version's folder.

    Raises:
        SentportError: When it cannot be had as written there.
    """
    if settings.values(config)[settings.FORM] == TOKENS:
        from triton_repo.model_tokens import TokenModel

        return TokenModel.from_config(config, folder)
    from triton_repo.model_text import TextModel

    return TextModel.from_config(config, folder)
