"""A trainer's pod as seen from outside: what it listens on, and how large what it says is."""

from __future__ import annotations

from typing import Final

PROGRESS_PORT: Final = 8080
"""Port at which every replica of the bundled trainer answers GET /progress and PUT /workers."""
PROGRESS_TOKEN_HEADER: Final = "X-Tfgpu-Token"  # noqa: S105 (its name)
MAX_PROGRESS: Final = 16 << 10
"""Bytes of an answer to GET /progress. A longer one is no report."""
MAX_SERIES: Final = 192 << 10
"""Bytes of an answer to GET /progress?series=STEP: 2 splits of 256 points, each of 17 numbers of at most 14 characters,
and the names."""
MAX_POINTS: Final = 256
MAX_NAMES: Final = 16
"""For each split: a model may have any number of metrics."""
MAX_NAME: Final = 64
"""Characters of a name."""
MAX_REPLICAS: Final = 512
"""Total of all roles: TF_CONFIG is one environment variable, and Linux caps those at 128 KiB."""
CODE_DIR: Final = "/code"
"""Folder of the code."""
SCRIPT_DIR: Final = "files"
"""Folder of the output directory in which the first worker runs a script."""
PLACED: Final = ".tfgpu-code"
"""File in it: the names of the code's files there."""
