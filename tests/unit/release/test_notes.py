"""The changelog is made from fragments, and a fragment without a place is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from release import notes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "webhook.added.md": "A webhook,\nfor those who want one.\n",
        "crash.fixed.md": "No crash.\n",
        "arms.fixed.md": "No arms.\n",
        "field.removed.md": "The field x: use y.\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_notes_say_first_what_may_break_something(folder: Path) -> None:
    assert notes.notes("1.2.0", "2026-11-22", notes.read(folder)) == (
        "## 1.2.0 (2026-11-22)\n\n"
        "### Removed\n\n- The field x: use y.\n\n"
        "### Added\n\n- A webhook, for those who want one.\n\n"
        "### Fixed\n\n- No arms.\n- No crash.\n"
    )


def test_a_release_comes_before_those_before_it() -> None:
    first = notes.with_notes(f"# Changelog\n\n{notes.MARK}", "## 1\n")
    second = notes.with_notes(first, "## 2\n")
    assert second == f"# Changelog\n\n{notes.MARK}\n## 2\n\n## 1\n"
    with pytest.raises(notes.FragmentError, match="put it before the first release"):
        notes.with_notes("# Changelog\n", "## 1\n")


@pytest.mark.parametrize("name", ["webhook.md", "webhook.new.md", "webhook.added.txt", "web.hook.added.md"])
def test_a_fragment_of_no_kind_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(notes.FragmentError, match=r"NAME\.KIND\.md, where KIND is one of removed, changed"):
        notes.read(tmp_path)


def test_an_empty_fragment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.fixed.md").write_text("\n")
    with pytest.raises(notes.FragmentError, match=r"a\.fixed\.md is empty"):
        notes.read(tmp_path)


def test_the_fragments_of_the_next_release_can_be_taken() -> None:
    assert notes.notes("1", "2026-11-22", notes.read())
    assert notes.MARK in notes.CHANGELOG.read_text()
