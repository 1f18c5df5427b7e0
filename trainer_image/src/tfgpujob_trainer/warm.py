"""A process that has imported TensorFlow and nothing more, and forks a training process for each request.

Its socket receives packets with the descriptors of a request as JSON, of a process's output, and of what the request
names: its heartbeats, its in-memory checkpoints if it makes any, and so on. It sends `{"ready": 1}` once, answers
`{"started": pid}` and, later, `{"ended": pid, "status": n}`. supervise/processes.py is its other side.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from tfgpujob_trainer import task
from tfgpujob_trainer.supervise.processes import MESSAGE_BYTES


def main(descriptor: int) -> None:
    """Serve until the supervisor is gone."""
    task.end_with_parent()
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    requests = socket.socket(fileno=descriptor)
    requests.send(json.dumps({"ready": 1}).encode())
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 512)
                _reap(requests)
            if requests in ready:
                asked, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 6)
                if not asked:
                    return
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    requests.close()
                    _train(descriptors)
                for each in descriptors:
                    os.close(each)
                requests.send(json.dumps({"started": pid}).encode())


def _reap(answers: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        answers.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _train(descriptors: Sequence[int]) -> NoReturn:
    """Be the training process."""
    code = 1
    try:
        request, stdout, stderr, *kept = descriptors
        with os.fdopen(request) as file:
            file.seek(0)
            asked = json.load(file)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for changed in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(changed, signal.SIG_DFL)
        for passed, number in ((stdout, 1), (stderr, 2)):
            os.dup2(passed, number)
            os.close(passed)
        os.environ.clear()
        os.environ.update(asked["environment"])
        for name, number in zip(asked["descriptors"], kept, strict=True):
            os.set_inheritable(number, True)
            os.environ[name] = str(number)
        # Random numbers without a seed must differ between processes, as they do between new ones.
        random.seed()
        np.random.seed()
        task.main(asked["arguments"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 (a fork must never go back into the parent's loop)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
