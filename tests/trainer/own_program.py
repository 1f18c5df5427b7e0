"""A program that holds the contract of docs/own-loops.md without the library. It trains nothing.

It runs until the file DONE is there, and says that it can be stopped once the file GATE is, if that is named. With
CHILD it starts a process, which would outlive it; with EXITING it handles SIGTERM no more, as Python when it exits.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

folder = Path(os.environ["TFGPU_ROUND_DIR"])
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
if config:
    assert json.loads((folder / "tf_config.json").read_text()) == config
print("round", os.environ["TFGPU_ROUND"], "of", len(config.get("cluster", {}).get("worker", [0])), flush=True)
if "CHILD" in os.environ:
    Path(os.environ["CHILD"]).write_text(
        str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]).pid)
    )
while not Path(os.environ.get("GATE", "/")).exists():
    time.sleep(0.01)
told: list[bool] = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
(folder / "stoppable").touch()
if "EXITING" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("can be stopped", flush=True)
while not told:
    if Path(os.environ["DONE"]).exists():
        sys.exit(0)
    time.sleep(0.01)
assert not list(folder.parent.glob("*/tf_config.json"))[1:], "a folder of another round"
sys.exit(143)
