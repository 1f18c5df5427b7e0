"""A user's own program: does what its first argument says. Started by `tfgpu run … -- python stand_in.py WHAT`."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    what = sys.argv[1]
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    print(f"started as {task.get('type')} {task.get('index')} in attempt {os.environ['TFGPU_ATTEMPT']}", flush=True)
    if what == "config":
        print(os.environ["TF_CONFIG"], flush=True)
    elif what == "fail":
        print("the last line", flush=True)
        sys.exit(3)
    elif what == "tell":
        told = {"until": int(1000 * time.time()), "parts": {"useful": 2000}, "reached": 7}
        words = {"summary": {"steps": 7}, "ledger": told}
        Path(os.environ["TFGPU_TERMINATION_LOG"]).write_text(json.dumps(words))
    elif what == "raise":
        raise ValueError("no such thing:\n" + "  [0. 0.]\n" * 3 + "of this type")
    elif what == "die-once" and os.environ["TFGPU_REPLICA_RESTART"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what in {"wait", "die-once"}:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        while True:
            signal.pause()
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
        while True:
            signal.pause()


main()
