"""Environment variables of the init container that fetches code (fetch_code.py)."""

from __future__ import annotations

from typing import Final

URL: Final = "TFGPU_GIT_URL"
COMMIT: Final = "TFGPU_GIT_COMMIT"
PATH: Final = "TFGPU_GIT_PATH"
CREDENTIALS: Final = "TFGPU_GIT_CREDENTIALS"
"""Folder with `username` and `password`, as in a Secret of type kubernetes.io/basic-auth, and `ca.crt`, if any."""
TARGET: Final = "TFGPU_GIT_TARGET"
