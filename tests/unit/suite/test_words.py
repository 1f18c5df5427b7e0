"""Docstrings and comments keep to the field's terms: no turn of speech of tests/figures.py is in them."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

import pytest
from tests import figures

FOLDERS = ("operator", "trainer_image", "tests", "localcluster", "release", "examples")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring, and each block of comments as one text, with its first line."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield statement.lineno, text
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append((token.start[0], token.string.lstrip("# ")))
        elif token.type != tokenize.NL and block:
            yield block[0][0], " ".join(text for _, text in block)
            block = []


def idioms(source: str) -> Iterator[tuple[int, str]]:
    """Each idiom, with the line where its text begins."""
    for line, text in texts(source):
        yield from ((line, found[0]) for found in figures.IDIOMS.finditer(text))


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_have_no_idiom(folder: str) -> None:
    files = sorted((figures.ROOT / folder).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(figures.ROOT)}:{line}: {word}" for file in files for line, word in idioms(file.read_text())
    ]
    assert not found, "name the thing and say what it does, in Kubernetes' and TensorFlow's terms:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Whoever asks."""', [(1, "Whoever")]),
        ("x = 1\n# It\n# goes on.\n", [(2, "goes on")]),
        ("x = 1  # nobody reads it\n", [(1, "nobody")]),
        ('nobody = "tell"\n', []),
    ],
)
def test_an_idiom_is_found_with_its_line(source: str, found: list[tuple[int, str]]) -> None:
    assert [*idioms(source)] == found
