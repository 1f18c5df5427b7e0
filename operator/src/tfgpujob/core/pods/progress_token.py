"""What a trainer is shown before it answers GET /progress: a pod's own, which its object and the operator know."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_HEX_DIGITS: Final = 32
"""128 bits."""


def progress_token(key: bytes, pod: str) -> str:
    """`pod` names one pod for all times. Who knows one token learns no other."""
    return hmac.new(key, pod.encode(), hashlib.sha256).hexdigest()[:_HEX_DIGITS]
