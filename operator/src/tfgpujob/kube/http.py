"""Reads the body of an answer that user code may have written."""

from __future__ import annotations

import aiohttp


async def read_at_most(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    """All of a short body; for a longer one, enough bytes to see that it is too long."""
    payload = bytearray()
    async for chunk in content.iter_any():
        payload += chunk
        if len(payload) > max_bytes:
            break
    return bytes(payload)
