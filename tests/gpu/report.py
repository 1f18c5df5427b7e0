"""The bounds that results must keep, and the table of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]
"""A result: `part`, and what it found."""


@dataclass(frozen=True)
class Bound:
    """`value` of a part's lines is at least or at most this. True counts as 1."""

    part: str
    value: str
    least: float | None = None
    most: float | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    """Only of lines with these values."""
    full: bool = False
    """Only on a GPU and at full size: tiny models on a CPU say nothing about speed, memory or drivers."""

    def concerns(self, line: Line, *, full: bool) -> bool:
        """Whether the line is judged by it."""
        values = {"part": self.part, **self.where}
        return self.value in line and (full or not self.full) and values.items() <= line.items()

    def holds(self, line: Line) -> bool:
        """Whether the line keeps it."""
        value = line[self.value]
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


BOUNDS = (
    Bound("devices", "count", least=1, full=True),
    Bound("devices", "productError", most=1e-5),
    Bound("devices", "convolutionError", most=1e-5),
    # Missed only if the whole interval is below it, as in make bench-trainer.
    Bound("loop", "high", least=1.0, where={"ours": "as it is", "over": "by hand"}, full=True),
    Bound("loop", "high", least=1.0, where={"ours": "as it is", "over": "fit(), jit_compile='auto'"}, full=True),
    # With XLA, without which a step took five times as long in either precision. An H100 reached 1.58.
    Bound("precision", "overTf32", least=1.7, where={"jit": "replica", "precision": "mixed_bfloat16"}, full=True),
    Bound("limits", "overLimit", least=0.95, most=1.05, full=True),
    Bound("limits", "refused", least=1, full=True),
    # TensorFloat-32 rounds sums of 32 rows other than sums of 64.
    Bound("workers", "lossApart", most=5e-3),
    Bound("nccl", "refused", least=1),
    Bound("resume", "repeated", least=1),
    Bound("resume", "resumed", least=1),
    Bound("parity", "lossApart", most=2e-3, where={"way": "float32"}),
    Bound("parity", "lossApart", most=2e-3, where={"way": "float32, jit: none"}),
    # TensorFloat-32 keeps 10 bits of a product's factors.
    Bound("parity", "lossApart", most=1e-2, where={"way": "TF32"}),
    Bound("kill", "seconds", most=5, full=True),
)
"""Issue 44's; the others are what the trainer promises anyway."""


def judged(line: Line, *, full: bool) -> Line:
    """The line with `ok`, if a bound concerns it."""
    bounds = [bound for bound in BOUNDS if bound.concerns(line, full=full)]
    return {**line, "ok": all(bound.holds(line) for bound in bounds)} if bounds else line


def failed(line: Line) -> bool:
    """Whether the result keeps the check from being ok."""
    return line.get("ok") is False or "error" in line or "skipped" in line


def table(lines: Sequence[Line]) -> str:
    """One row a result: its part, its values, and whether it keeps its bounds."""
    return "\n".join(f"{line['part']:10}{_mark(line):8}{_values(line)}".rstrip() for line in lines)


def _mark(line: Line) -> str:
    return "MISSED" if failed(line) else "ok" if "ok" in line else ""


def _values(line: Line) -> str:
    shown = {k: v for k, v in line.items() if k not in ("part", "ok") and not isinstance(v, list | dict)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
