"""Pages that people read for the first time: short, in plain words, and without what only contributors need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.pages import FENCE, ROOT

DOCS = ROOT / "docs"
OF_USERS = {"Home", "Train", "Troubleshoot", "Administer"}
GENERATED = re.compile(r"<!-- (?!end).*?<!-- end -->", re.DOTALL)
MOST_WORDS, MOST_OF_ALL = 25_000, 55_000
ODD = re.compile(
    r"\b(?:whoever|nobody|somebody|anew|so many|for ever|(?:is|are) told|go(?:es)? on|comes? and goe?s?"
    r"|takes? the place of|(?:is|are) through|made good|sees? to)\b|(?-i:^Of [A-Za-z])",
    re.IGNORECASE | re.MULTILINE,
)
"""Idioms that readers had to read twice."""


def pages(sections: set[str] | None = None) -> Iterator[Path]:
    """Pages in the site's navigation; None: those of all sections. Generated pages and decisions are written
    elsewhere.
    """
    for section in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]:
        [(name, entries)] = section.items()
        if sections is None or name in sections:
            yield from (path for path in map(_page, entries) if path.parent == DOCS)


def _page(entry: Any) -> Path:
    return DOCS / (entry if isinstance(entry, str) else next(iter(entry.values())))


@cache
def users_pages() -> list[Path]:
    return [ROOT / "README.md", *pages(OF_USERS)]


def test_every_page_stands_in_one_section() -> None:
    shown = list(pages())
    assert sorted(shown) == sorted(DOCS.glob("*.md"))


def test_users_pages_are_short() -> None:
    assert sum(len(page.read_text().split()) for page in users_pages()) <= MOST_WORDS


def test_all_pages_are_short() -> None:
    written = {*DOCS.rglob("*.md")} - {*DOCS.glob("reference/*"), DOCS / "adr/README.md"}
    assert sum(len(GENERATED.sub("", page.read_text()).split()) for page in written) <= MOST_OF_ALL


def test_users_pages_name_no_tests() -> None:
    named = {page.name: re.findall(r"`(?:test_\w+|scenario:[\w-]+)`", page.read_text()) for page in users_pages()}
    assert {name: found for name, found in named.items() if found} == {}


def test_prose_is_plain() -> None:
    """Without what programs print, and without the page that a GPU's owner writes."""
    shown = {page.name: page.read_text() for page in (ROOT / "README.md", *pages()) if page.name != "gpu.md"}
    prose = {name: re.sub(r"`[^`]*`", "", FENCE.sub("", GENERATED.sub("", text))) for name, text in shown.items()}
    odd = {name: ODD.findall(text) for name, text in prose.items()}
    assert {name: found for name, found in odd.items() if found} == {}
