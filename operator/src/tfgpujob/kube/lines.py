"""Splits a stream of bytes into lines, and keeps no more in memory than necessary."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A line without its newline, or a piece of a line that is too long."""

    text: bytes
    begins: bool = True
    """The first piece of its line."""
    ends: bool = True
    """The last piece of its line."""


class Splitter:
    """Takes chunks and returns the lines that they complete.

    `longest`: bytes of a line that are kept; a longer one is returned in pieces. None: lines are returned whole.
    """

    def __init__(self, longest: int | None = None) -> None:
        self._longest = longest
        self._held = bytearray()
        self._begins = True

    def feed(self, chunk: bytes) -> list[Part]:
        """The lines that this chunk completes. Each byte is read once, however long its line is."""
        head, newline, tail = chunk.partition(b"\n")
        self._held += head
        if not newline:
            return self._pieces()
        parts = [*self._pieces(), self._take(ends=True)]
        *lines, rest = tail.split(b"\n")
        if self._longest is None or len(tail) <= self._longest:
            parts += [Part(line) for line in lines]
            self._held += rest
            return parts
        for line in lines:
            self._held += line
            parts += [*self._pieces(), self._take(ends=True)]
        self._held += rest
        return parts + self._pieces()

    def rest(self) -> list[Part]:
        """At the end of the stream: the last line if it has no newline."""
        return [self._take(ends=True)] if self._held or not self._begins else []

    def _pieces(self) -> list[Part]:
        """All but the last piece of a line that is too long: that piece may be its end."""
        parts = []
        while self._longest is not None and len(self._held) > self._longest:
            parts.append(Part(bytes(self._held[: self._longest]), self._begins, ends=False))
            del self._held[: self._longest]
            self._begins = False
        return parts

    def _take(self, *, ends: bool) -> Part:
        part = Part(bytes(self._held), self._begins, ends)
        self._held.clear()
        self._begins = ends
        return part
