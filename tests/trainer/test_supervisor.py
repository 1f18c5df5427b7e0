"""How the training process is set up; what the supervisor says of its end is in test_processes."""

import os
import subprocess
import sys

import pytest

from tfgpujob_trainer.supervise.processes import KEEP_MEMORY

BATCHES = """
import resource, threading
import numpy as np

def read():
    for _ in range(200):
        rows = np.ones(200_000, "float32")
        tensor = rows.copy(), rows.copy()
        del rows, tensor

thread = threading.Thread(target=read)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
PAGES = 200 * 200_000 * 4 // 4096


@pytest.mark.parametrize(("keep", "fresh"), [(KEEP_MEMORY, False), ({}, True)])
def test_batches_that_come_and_go_do_not_cost_fresh_pages(keep, fresh):
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", BATCHES], env={**others, **keep}, check=True, capture_output=True)
    assert (int(done.stdout) > PAGES) is fresh
