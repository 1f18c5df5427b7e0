"""The memory limit of each parameter server, which only its own container can read: the chief fetches it by RPC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.parameter_server.rows import register

_NAME = "tfgpu_memory_limit"
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""For cgroup v2 and v1."""
_NONE = 1 << 60
"""Version 1 has a huge number for no limit."""


def limit_of_this_container() -> int:
    """In bytes; 0 if there is no limit, or it is unknown."""
    for path in _LIMITS:
        text = path.read_text().strip() if path.exists() else ""
        if text.isdigit():
            return int(text) if int(text) < _NONE else 0
    return 0


def register_limit() -> None:
    """Let the chief fetch this process's limit."""
    register(_NAME, lambda: [np.int64(limit_of_this_container())])


def fetch_limits(servers: int) -> dict[str, int]:
    """Bytes that each parameter server, such as `ps-1`, may use; those without a limit are omitted."""

    @tf.function(autograph=False)
    def ask() -> list[tf.Tensor]:
        answers = []
        for index in range(servers):
            with tf.device(f"/job:ps/replica:0/task:{index}/device:CPU:0"):
                answers += tf.raw_ops.PyFunc(input=[], token=_NAME, Tout=[tf.int64])
        return answers

    limits = {f"ps-{index}": int(answer) for index, answer in enumerate(ask())}
    return {server: limit for server, limit in limits.items() if limit}
