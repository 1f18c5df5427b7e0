"""The real server is the one that KUBECONFIG names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """Skips where there is no cluster: `make test-integration` sees to one."""
    path = os.environ.get("KUBECONFIG", "")
    if not path or not Path(path).exists():
        pytest.skip("KUBECONFIG names no cluster")
    return Path(path)
