"""Both packages import the contract, so it brings no dependency."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import tfgpujob_contract

PACKAGE = Path(tfgpujob_contract.__file__).parent


def test_the_contract_needs_only_the_standard_library() -> None:
    imported = set[str]()
    for file in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    assert {name.split(".")[0] for name in imported} - {"tfgpujob_contract"} <= sys.stdlib_module_names
