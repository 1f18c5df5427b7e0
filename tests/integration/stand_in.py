"""The program of a TFJob, less TensorFlow: it reads TF_CONFIG as such programs do, and talks to every peer.

Exit code 0 says that TF_CONFIG names this pod, and that all tasks found each other where it says.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
tasks = [(role, index) for role, addresses in cluster.items() for index in range(len(addresses))]
me = (task["type"], task["index"])
if "master" in cluster or me not in tasks:
    raise SystemExit(f"TensorFlow refuses this TF_CONFIG: {config}")
host, _, port = cluster[me[0]][me[1]].partition(":")
if host.split(".")[0] != socket.gethostname():
    raise SystemExit(f"TF_CONFIG calls this pod {host}, its name is {socket.gethostname()}")
if Path("/data").is_dir():
    Path(f"/data/{me[0]}-{me[1]}").write_text("written")

peers = [cluster[role][index].partition(":") for role, index in tasks if (role, index) != me]
deadline = time.monotonic() + 60
with socket.create_server(("", int(port)), backlog=64) as server:
    server.settimeout(60)
    for name, _, number in peers:
        while True:
            try:
                socket.create_connection((name, int(number)), timeout=5).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    for _ in peers:
        server.accept()
print(f"{me[0]} {me[1]} spoke with {len(peers)} peers", flush=True)
if me[0] == "ps":
    # A parameter server never ends by itself; the first process of a container ignores a signal without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.pause()
