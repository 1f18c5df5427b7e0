"""The environment in which a node's programs run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WHERE = "from localcluster.layout import RUN; print(RUN, flush=True)"
START = f"""
import sys
from types import SimpleNamespace
from pathlib import Path
from localcluster.node import Programs
programs = Programs(SimpleNamespace(logs=Path(sys.argv[1])))
programs.start("where", [sys.executable, "-c", {WHERE!r}])
programs._running["where"].wait()
"""


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_they_find_the_cluster_of_whoever_started_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root with the HOME of another user, as after `sudo -E`: nothing may look for credentials below /root."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    ours = subprocess.run([sys.executable, "-c", WHERE], check=True, capture_output=True, text=True).stdout
    subprocess.run([sys.executable, "-c", START, str(tmp_path)], check=True)
    assert (tmp_path / "where.log").read_text() == ours
    assert str(tmp_path) in ours
