"""What the tests of the export share."""

from __future__ import annotations

from functools import partial

import pytest

from export import exporter


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `export_tiny`: the 2,000 lines are for the real model, and so are several threads."""
    monkeypatch.setattr(exporter, "adversarial_lines", lambda: ["the cat"])
    monkeypatch.setattr(exporter, "TorchEngine", partial(exporter.TorchEngine, threads=1))
