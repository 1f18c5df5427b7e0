"""A rule's words stand once, for Python and for CEL: what stands twice is soon said in two ways."""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

import pytest

import tfgpujob.api.rules

FILES = sorted(Path(tfgpujob.api.rules.__file__).parent.glob("*.py"))
TABLES = {"host.py"}
"""Each row there is about another control, in words that are alike."""
ALIKE = 40
"""Characters in a row that two texts may have in common."""


def texts(path: Path) -> list[str]:
    """What the file says to people: no docstrings and no CEL."""
    tree = ast.parse(path.read_text())
    comments = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in comments)
    said = (node.value for node in constants if isinstance(node.value, str) and " " in node.value)
    return [text for text in said if not any(sign in text for sign in ("self.", "has(", "||", "&&"))]


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in TABLES], ids=lambda path: path.stem)
def test_no_message_stands_twice(path: Path) -> None:
    for one, other in combinations(texts(path), 2):
        same = SequenceMatcher(None, one, other, autojunk=False).find_longest_match()
        assert same.size <= ALIKE, one[same.a : same.a + same.size]
