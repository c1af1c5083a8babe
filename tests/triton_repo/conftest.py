"""What the tests of the server share: its environment, built once, and a look at what a server left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentport.errors import SentportError
from triton_repo.environment import ServerEnvironment, find_interpreter, prepare_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server_environment() -> ServerEnvironment:
    """The real environment, kept in build/envs/server from one run of the tests to the next."""
    try:
        find_interpreter()
    except SentportError as error:
        pytest.skip(f"no Triton server here (`apt-get install libpython3.11` helps): {error}")
    return prepare_environment(ROOT / "build" / "envs" / "server")
