"""`tfgpu-train --config trainer.json [--set a.b=c]`: checks the configuration, then trains in child processes."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The command line, shared with the training process."""
    result = argparse.ArgumentParser(prog="tfgpu-train", description=__doc__)
    result.add_argument("--config", type=Path, required=True, metavar="FILE", help="spec.trainer as JSON")
    result.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="override one field, such as params.units=32"
    )
    return result
