"""`tfgpu tensorboard --local`: there in seconds, since TensorFlow is not imported, and with nothing else to read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import tensorflow as tf
from tests.machine import PATIENCE
from tests.trainer.harness import until

sys.path.append(str(Path(__file__).resolve().parents[2] / "operator/src"))
from tfgpujob.local.tensorboard import command_line


def test_the_curves_of_a_local_run(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path / "events/train")).as_default():
        tf.summary.scalar("loss", 0.5, step=3)
    said = tmp_path / "said"
    with said.open("wb") as out:
        viewer = subprocess.Popen(command_line(tmp_path / "events", 0), stdout=out, stderr=out)
    try:
        until(lambda: "http://" in said.read_text() or viewer.poll() is not None, PATIENCE)
        (address,) = re.findall(r"http://localhost:\d+/", said.read_text())
        scalars = f"{address}data/plugin/scalars/tags"

        def tags():
            with urllib.request.urlopen(scalars) as answer:
                return json.load(answer)

        until(lambda: tags() != {}, PATIENCE)
        assert list(tags()["train"]) == ["loss"]
        maps = Path(f"/proc/{viewer.pid}/maps").read_text()
        assert "libtensorflow" not in maps
        assert len(said.read_text().splitlines()) <= 3, said.read_text()
    finally:
        viewer.kill()
        viewer.wait()
