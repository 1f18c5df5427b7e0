"""Functions of a running program as a file: it defines what they use, and nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import json as js
import linecache
import math
import runpy
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
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


def module_from(folder: Path, name: str, text: str) -> Any:
    """A module of one's own, imported."""
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    linecache.checkcache()
    return importlib.import_module(name)


def _is_below(folder: Path, module: Any) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(folder))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if _is_below(tmp_path, module)]:
        del sys.modules[name]


LOAD = "def load(split): return split\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def data(n): return n + 1\n" + LOAD + "def make(): return data(4)",
            r"data would stand for two things in the job, the function data at clash_0.py:1 and the function load at ",
        ),
        (
            "def build(): return 1\nsmall = build\ndef build(): return 2\ndef make(): return small(), build()\n" + LOAD,
            r"build would stand for two things in the job, .*clash_1.py:1 and .*clash_1.py:3: rename one of them",
        ),
        (
            "data = [1]\n" + LOAD + "def make(): return data",
            "data would stand for two things in the job, a list and the function load",
        ),
        (
            "import json as data\n" + LOAD + "def make(): return data.dumps(1)",
            "data would stand for two things in the job, a module called json and the function load",
        ),
        (
            "from math import sqrt as data\n" + LOAD + "def make(): return data(1)",
            "data would stand for two things in the job, a builtin_function_or_method called sqrt and the function",
        ),
    ],
    ids=["function", "redefined", "constant", "module", "imported"],
)
def test_a_name_that_stands_for_two_things_is_refused(own: Path, text: str, message: str) -> None:
    found = module_from(own, f"clash_{int('small' in text)}", text)
    with pytest.raises(ValueError, match=message):
        module_of({"model": found.make, "data": found.load})


def test_functions_of_two_modules_share_what_is_the_same(own: Path) -> None:
    one = module_from(own, "first_of_two", "import math\nROWS = 1000\ndef model(): return __name__, math.floor(ROWS)")
    two = module_from(own, "second_of_two", "import math\nROWS = 500 * 2\ndef data(s): return __name__, ROWS")
    ran: dict[str, Any] = {"__name__": "made"}
    exec(module_of({"model": one.model, "data": two.data}).text, ran)
    assert (ran["model"](), ran["data"]("train")) == (("made", 1000), ("made", 1000))
    other = module_from(own, "third_of_two", "ROWS = 7\ndef data(s): return ROWS")
    with pytest.raises(ValueError, match="ROWS would stand for two things"):
        module_of({"model": one.model, "data": other.data})
    mine = module_from(own, "own_len", "def len(x): return 7\ndef data(s): return len(s)")
    theirs = module_from(own, "their_len", "def model(): return len([])")
    with pytest.raises(ValueError, match="len would stand for two things"):
        module_of({"model": theirs.model, "data": mine.data})


def test_what_a_decorated_function_uses_goes_along(own: Path) -> None:
    found = module_from(
        own,
        "decorated",
        "import time\nfrom contextlib import contextmanager\n"
        "@contextmanager\ndef timer():\n    yield time.time()\n"
        "def main():\n    with timer() as now:\n        return now > 0\n",
    )
    ran: dict[str, Any] = {"__name__": "made"}
    exec(module_of({"main": found.main}).text, ran)
    assert ran["main"]() is True


def test_a_function_that_was_wrapped_later_is_refused(own: Path) -> None:
    found = module_from(
        own,
        "wrapped_later",
        "from contextlib import contextmanager\ndef plain(): yield 1\ntimer = contextmanager(plain)\n"
        "def main():\n    with timer() as one: return one\n",
    )
    with pytest.raises(ValueError, match=r"plain\(\) was wrapped outside its definition: write the decorator above"):
        module_of({"main": found.main})


def test_modules_below_a_module_are_imported(own: Path) -> None:
    found = module_from(
        own,
        "below",
        "import concurrent.futures, os.path, xml.etree.ElementTree, xml as x\n"
        "def main(): return concurrent.futures.Executor, os.path.join, xml.etree.ElementTree.parse\n"
        "def data(split): return x.etree.ElementTree.parse\n",
    )
    text = module_of({"main": found.main, "data": found.data}).text
    imports = [line for line in text.splitlines() if line.startswith("import ")]
    assert imports == ["import concurrent.futures", "import os", "import xml as x", "import xml.etree.ElementTree"]
    (own / "made.py").write_text(text + "main()\ndata('train')\n")
    subprocess.run([sys.executable, str(own / "made.py")], check=True)


def test_modules_that_modules_of_ones_own_import_go_along(own: Path) -> None:
    (own / "deepest_of_mine.py").write_text("import json\nimport deeper_of_mine\n")
    (own / "deeper_of_mine.py").write_text("import not_there_at_all\n")
    helper = "def tripled(n):\n    from deepest_of_mine import json\n    return 3 * n\n"
    (own / "a_helper_of_mine.py").write_text(helper)
    found = module_from(own, "uses_helper", "import a_helper_of_mine\ndef main(): return a_helper_of_mine.tripled(1)\n")
    brought = {file.name for file in module_of({"main": found.main}).modules}
    assert brought == {"a_helper_of_mine.py", "deepest_of_mine.py", "deeper_of_mine.py"}
    (own / "a_package_of_mine").mkdir()
    (own / "a_package_of_mine/__init__.py").touch()
    (own / "deeper_of_mine.py").write_text("import a_package_of_mine.layers\n")
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match="a_package_of_mine is a package of yours that is not installed"):
        module_of({"main": found.main})
