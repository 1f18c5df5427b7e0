"""The changelog, from fragments: release/changes/NAME.KIND.md, one change each, in the words of who uses it.

A file a change, so that two branches never edit the same line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAGMENTS = ROOT / "release" / "changes"
CHANGELOG = ROOT / "CHANGELOG.md"
KINDS = ("removed", "changed", "added", "fixed", "security")
"""In the order of the notes: first what may break existing use."""
MARK = "<!-- releases -->\n"


class FragmentError(Exception):
    """A fragment can't be taken. The message names the file and the fix."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One change."""

    name: str
    kind: str
    text: str


def read(folder: Path = FRAGMENTS) -> list[Fragment]:
    """The fragments of the folder, by kind and then by name. Raises FragmentError."""
    found = [_fragment(path) for path in sorted(folder.iterdir())]
    return sorted(found, key=lambda fragment: (KINDS.index(fragment.kind), fragment.name))


def _fragment(path: Path) -> Fragment:
    name, *kinds = path.name.split(".")
    if len(kinds) != 2 or kinds[0] not in KINDS or kinds[1] != "md":
        raise FragmentError(f"{path.name}: call it NAME.KIND.md, where KIND is one of {', '.join(KINDS)}")
    text = " ".join(path.read_text().split())
    if not text:
        raise FragmentError(f"{path.name} is empty: say what changed, for who uses it")
    return Fragment(name, kinds[0], text)


def notes(version: str, date: str, fragments: Iterable[Fragment]) -> str:
    """The section of one release. `date` is the day, as 2026-11-22."""
    fragments = list(fragments)
    parts = [f"## {version} ({date})\n"]
    for kind in KINDS:
        lines = [f"- {fragment.text}" for fragment in fragments if fragment.kind == kind]
        if lines:
            parts.append("\n".join([f"### {kind.capitalize()}", "", *lines]) + "\n")
    return "\n".join(parts)


def with_notes(changelog: str, section: str) -> str:
    """The changelog with a section before all others."""
    before, mark, after = changelog.partition(MARK)
    if not mark:
        raise FragmentError(f"the changelog has no line {MARK.strip()}: put it before the first release")
    return f"{before}{mark}\n{section}{after}"
