"""Functions of a running program as a file: it defines what they use, and nothing else."""

from __future__ import annotations

import dataclasses
import json as js
import linecache
import math
import runpy
import subprocess
import sys
import types
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tfgpujob.convert.functions import module_of, script_of

ROWS = 3
NAMES = {"a": [1, 2.5], "b": None}
NOT_PLAIN = object()


def doubled(number: int) -> int:
    return number * 2


def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


class Base:
    def rows(self) -> int:
        return doubled(ROWS)


class Derived(Base):
    def seconds(self) -> float:
        return timedelta(seconds=self.rows()).total_seconds()


@dataclasses.dataclass
class Plain:
    rows: int = ROWS


def model(width: int = ROWS) -> str:
    return js.dumps([width, Derived().seconds(), even(4), Plain().rows, math.floor(1.5)])


def data(split: str) -> Any:
    return NAMES if split == "train" else None


alias = doubled


def uses_alias() -> int:
    return alias(ROWS)


def main() -> None:
    print("ran", uses_alias())


def test_a_module_has_the_functions_under_their_names_and_what_they_use(tmp_path: Path) -> None:
    code = module_of({"model": model, "data": data, "callbacks": even})
    file = tmp_path / "made.py"
    file.write_text(code.text)
    found = runpy.run_path(str(file))
    assert found["model"]() == model()
    assert found["data"]("train") == NAMES
    assert found["callbacks"](3) is False
    assert "NOT_PLAIN" not in found
    assert "pytest" not in code.text
    assert "import json as js\n" in code.text
    assert code.modules == ()


def test_a_function_becomes_a_script_that_calls_it(tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    file.write_text(script_of(main).text)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == "ran 6\n"


def test_cells_of_a_notebook_are_found_and_a_module_of_ones_own_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As IPython has it: each cell is a file of its own that only linecache knows, and __main__ has no file."""
    (tmp_path / "helper_of_mine.py").write_text("def tripled(n):\n    return 3 * n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    main_module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main_module)
    cells = [
        "from helper_of_mine import tripled\nWIDTH = 4\n",
        "class Net:\n    def __init__(self):\n        self.width = tripled(WIDTH)\n",
        "def model():\n    return Net().width\n\ndef data(split):\n    return split\n",
    ]
    for number, cell in enumerate(cells):
        name = f"<ipython-input-{number}>"
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        exec(compile(cell, name, "exec"), vars(main_module))
    code = module_of({"model": main_module.model, "data": main_module.data})
    assert [file.name for file in code.modules] == ["helper_of_mine.py"]
    (tmp_path / "made.py").write_text(code.text)
    assert runpy.run_path(str(tmp_path / "made.py"))["model"]() == 12


def made() -> Callable[[], int]:
    inner = 3

    def closure() -> int:
        return inner

    return closure


def uses_what_was_made() -> Any:
    return NOT_PLAIN


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (uses_what_was_made, "uses_what_was_made uses NOT_PLAIN, a object that was made elsewhere: make it in the"),
        (made(), r"closure\(\) uses inner of the function around it"),
        (lambda: 1, "data is a lambda"),
        (3, "data is a int: give a function"),
        (print, "data is a builtin_function_or_method: give a function"),
    ],
)
def test_what_no_text_can_say_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module_of({"data": function})
