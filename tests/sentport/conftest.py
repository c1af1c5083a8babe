"""A bundle with graphs of both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import export_tiny, made_once

from sentport.bundle import LAYOUTS


@pytest.fixture(scope="session")
def both_layouts(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint exported padded and packed, in the portable flavour."""

    def make(folder: Path) -> Path:
        return export_tiny(tiny_checkpoint, folder / "tiny.bundle", flavours=("portable",), layouts=LAYOUTS)

    return made_once(tmp_path_factory, "layouts", make)
