"""Secrets of a pod, or of the pods of one attempt, known only to those who may read the pods' environment."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_HEX_DIGITS: Final = 32
"""128 bits."""


def pod_token(key: bytes, pod: str) -> str:
    """`pod` identifies one pod, or one attempt, uniquely. No token can be derived from another."""
    return hmac.new(key, pod.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]
