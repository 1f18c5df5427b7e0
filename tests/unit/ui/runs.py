"""Runs and curves for the pages: of a cluster in memory, of a folder of this machine, and by chance."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from tests.harness.live import LiveCluster
from tests.harness.scenario import job
from tests.machine import PATIENCE

from tfgpujob.client import Client
from tfgpujob.local.folder import Folder
from tfgpujob.names import Condition
from tfgpujob.ui.sources import LINES

TRAINER = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}


def started(live: LiveCluster, name: str) -> None:
    with Client() as client:
        client.submit(job(name, worker=2, spec={"trainer": TRAINER}))
        client.wait(name, condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    live.say(f"{name}-worker-1", *(f"line {i}" for i in range(3 * LINES)))


def local_run(folder: Path, *, name: str = "digits", **more: str) -> Folder:
    run = Folder(folder / name)
    run.open()
    run.keep({**job(name, worker=2), "metadata": {"name": name, "namespace": "default", "uid": "u"}, "status": {}})
    for replica, text in more.items():
        (run.logs / f"{replica.replace('_', '-')}.log").write_text(text)
    return run


POINTS = st.lists(
    st.tuples(st.integers(0, 10**15), st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=20
).map(sorted)
