"""The browser lives as long as the run."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from browser import Shared  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "short: also a part of `make test`")


@pytest.fixture(scope="session", autouse=True)
def browser_close():
    yield
    Shared.close()
