"""What only a pod, or the pods of one attempt, and who may read them know: made up here, kept in their environment."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_HEX_DIGITS: Final = 32
"""128 bits."""


def pod_token(key: bytes, pod: str) -> str:
    """`pod` names one pod, or one attempt, for all times. Who knows one token learns no other."""
    return hmac.new(key, pod.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]
