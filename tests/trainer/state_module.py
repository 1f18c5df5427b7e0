"""A module that writes down in which state its process begins, leaves another one, and ends it or keeps it busy."""

import json
import locale
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context


def state():
    """All that an earlier run of the same process, or the process that forked it, could have left."""
    kept = ("TF_", "KERAS_", "OMP_", "PYTHON", "MALLOC_", "LEFT")
    return {
        "floatx": keras.config.floatx(),
        "policy": keras.config.dtype_policy().name,
        "image format": keras.config.image_data_format(),
        "names": keras.layers.Dense(1).name,
        "registered": sorted(keras.saving.get_custom_objects()),
        "traceback filtering": keras.config.is_traceback_filtering_enabled(),
        "seed": context.global_seed(),
        "runtime": context.context()._initialized,
        "functions run eagerly": tf.config.functions_run_eagerly(),
        "strategy": tf.distribute.has_strategy(),
        "errors": np.geterr(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(kept)},
        "directory": str(Path.cwd()),
        "path": sys.path,
        "temporary": tempfile.gettempdir(),
        "locale": locale.setlocale(locale.LC_ALL),
        "modules": sorted(name for name in sys.modules if name.startswith("tests.") or name == "left"),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)],
        "blocked": sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
        "mask": next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")),
        "session": os.getsid(0) == os.getpid(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def leave_another():
    """Change what a run might change, and more."""
    keras.config.set_floatx("float16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.disable_traceback_filtering()
    keras.layers.Dense(1)
    tf.random.set_seed(3)
    tf.config.run_functions_eagerly(True)
    os.environ["LEFT"] = "1"
    os.umask(0o77)
    sys.modules["left"] = sys
    np.seterr(all="raise")


def data(split, file, burn=0.0, wait=False):
    Path(file).write_text(json.dumps(state()))
    leave_another()
    while time.process_time() < burn:
        pass
    if wait:
        Path(file).with_suffix(".waits").touch()
        time.sleep(1000)
    raise SystemExit(3)


def model(**_):
    raise AssertionError("the data comes first")
