"""A bundle with graphs of both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import export_tiny

from sentport.bundle import LAYOUTS


@pytest.fixture(scope="session")
def both_layouts(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint exported padded and packed, in the portable flavour."""
    out = tmp_path_factory.mktemp("layouts") / "tiny.bundle"
    return export_tiny(tiny_checkpoint, out, flavours=("portable",), layouts=LAYOUTS)
