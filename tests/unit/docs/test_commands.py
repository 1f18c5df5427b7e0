"""Every command on a page is run by a test, or there is a reason why not."""

from __future__ import annotations

import re

from tests.pages import FENCE, NOT_TYPED, PAGES, ROOT, TYPED_BY, commands


def test_every_command_is_typed_by_a_test_or_says_why_not() -> None:
    on_pages = {command for page in PAGES for command in commands(page)}
    assert on_pages == TYPED_BY.keys() | NOT_TYPED.keys()
    assert not TYPED_BY.keys() & NOT_TYPED.keys()


def test_the_tests_that_type_them_take_them_from_the_table() -> None:
    for test in set(TYPED_BY.values()):
        assert "typed_by(__file__)" in (ROOT / test).read_text(), test


def test_what_runs_instead_exists() -> None:
    files = {file for reason in NOT_TYPED.values() for file in re.findall(r"tests/[\w/]+\.py", reason)}
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_blocks_show_alike_on_the_site_in_the_repository_and_in_a_terminal() -> None:
    """A diagram in a language of its own would need a program from elsewhere to be drawn."""
    languages = {language for page in PAGES for language, _ in FENCE.findall(page.read_text())}
    assert languages <= {"", "text", "sh", "yaml", "json", "python"}


def test_commands_stand_in_blocks_of_their_own_language() -> None:
    """A plain block is what a program prints."""
    typed = re.compile(
        r"^ *(tfgpu \w+ |helm |kubectl (?!apply -f job\.yaml |apply ──)|docker |pip |python3? -m)", re.MULTILINE
    )
    plain = [text for page in PAGES for language, text in FENCE.findall(page.read_text()) if not language]
    assert [text for text in plain if typed.search(text)] == []
