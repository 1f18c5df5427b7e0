"""The user's module: found, checked, and called by what its functions take."""

from __future__ import annotations

import textwrap

import keras
import pytest

from tfgpujob_trainer.contract import entrypoint
from tfgpujob_trainer.contract.exits import ConfigError

GOOD = """
def model(units=64, lr=1e-3):
    return ("model", units, lr)

def data(split, units=1, size=2):
    return (split, units, size)
"""


@pytest.fixture
def load(tmp_path):
    def write_and_load(code, params=None, name="mine.py"):
        (tmp_path / "mine.py").write_text(textwrap.dedent(code))
        return entrypoint.load(name, params or {}, tmp_path)

    return write_and_load


def test_each_function_gets_the_params_that_it_names(load):
    module = load(GOOD, {"units": 3, "size": 4})
    assert module.model() == ("model", 3, 1e-3)
    assert module.data("test") == ("test", 3, 4)


def test_builtin_module_and_file(load, tmp_path, monkeypatch):
    assert load(GOOD).model() == ("model", 64, 1e-3)
    (tmp_path / "package_of_a_test").mkdir()
    (tmp_path / "package_of_a_test" / "train.py").write_text(GOOD)
    assert entrypoint.load("package_of_a_test.train", {}, tmp_path).model()[0] == "model"
    x, y = entrypoint.load("digits", {"units": 8}, tmp_path).data("test")
    assert x.shape == (297, 64)
    assert len(y) == 297


@pytest.mark.parametrize(
    ("code", "params", "message", "fix"),
    [
        (GOOD, {"unit": 3}, "model() has no 'unit'", "did you mean 'units'?"),
        ("def model(): ...", {}, "has no function data()", "define it"),
        ("def data(split): ...", {}, "has no function model()", "define it"),
        ("def model(): ...\ndef data(): ...", {}, "data()'s first parameter is ''", "write def data(split):"),
        ("def model(n): ...\ndef data(split): ...", {}, "model() needs 'n'", "set trainer.params.n"),
        (GOOD + "\ndef callbacks(path): ...", {}, "callbacks() needs 'path'", "set trainer.params.path"),
    ],
)
def test_mistakes(load, code, params, message, fix):
    with pytest.raises(ConfigError) as caught:
        load(code, params)
    assert message in str(caught.value)
    assert caught.value.fix.startswith(fix)


def test_a_file_named_like_a_package_does_not_hide_it(tmp_path):
    (tmp_path / "keras.py").write_text("import keras\n" + GOOD.replace('("model", units, lr)', "keras.Input"))
    assert entrypoint.load("keras.py", {}, tmp_path).model() is keras.Input


def test_a_script_that_ends_the_process_is_refused(load):
    with pytest.raises(ConfigError, match=r"ends the process as it is imported, with sys.exit\(0\)") as caught:
        load(GOOD + "\nimport sys\nsys.exit(0)")
    assert caught.value.fix == "put what a script does under if __name__ == '__main__':"


@pytest.mark.parametrize("name", ["digit", "no_such_module.at_all", "no_such_file.py"])
def test_an_entrypoint_that_is_not_there(load, name):
    with pytest.raises(ConfigError):
        load(GOOD, name=name)
