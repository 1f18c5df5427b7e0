"""What a script does at its end, and how it ends where its arguments are wrong."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import tensorflow as tf
from tests.trainer.inprocess import session_of

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, ExitedError, NotFiniteError, PeerLostError, StoppedError
from tfgpujob_trainer.script.ending import AtExit
from tfgpujob_trainer.script.run import _run, run_with
from tfgpujob_trainer.supervise.processes import training_environment

LEAVES = """
import atexit, json, os
os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np

words = set("one word after another as they come from a text".split())
results = open("results.json", "w")

@atexit.register
def say_goodbye():
    print("registered first, called last")

atexit.register(print, "model of", 3, sep=" = ")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones(8))

def report():
    json.dump(list(words), results)

report()
"""


def test_a_script_ends_as_in_python(launch_here, tmp_path):
    """What it registers for its end is called, files that it leaves open are written, and its sets have one order.

    Nothing is left of it in the temporary directory.
    """
    (tmp_path / "leaves.py").write_text(LEAVES)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    written = []
    for number in range(2):
        config = {"entrypoint": "leaves.py", "output": {"directory": str(tmp_path / f"run-{number}")}}
        task = launch_here.start(config, env={"TFGPU_CODE_DIR": str(tmp_path), "TMPDIR": str(temporary)}).ends(0)
        assert list(temporary.iterdir()) == []
        assert "KERAS_BACKEND=jax in the script has no effect: Keras computes with TensorFlow" in task.log
        assert "model of = 3\nregistered first, called last" in task.log
        written.append((tmp_path / "results.json").read_text())
    assert written[0] == written[1] != ""


def test_what_libraries_register_is_left_to_them(capsys):
    at_exit, library = AtExit(), {"__name__": "tensorflow.python.somewhere"}
    exec("def close(): print('closed')", library)

    def fail() -> None:
        raise ValueError("too late")

    with at_exit.listening():
        atexit.register(print, "never")
        atexit.register(library["close"])  # type: ignore[arg-type]
        atexit.unregister(print)
        atexit.register(print, "first")
        atexit.register(fail)
        atexit.register(print, "last")
    at_exit.call()
    at_exit.call()
    printed = capsys.readouterr()
    assert printed.out == "last\nfirst\n"
    assert "ValueError: too late" in printed.err


def test_sets_of_text_have_one_order_unless_the_job_says_otherwise():
    def order(environment):
        command = [sys.executable, "-S", "-c", "print(hash('a'))"]
        return subprocess.run(command, env=training_environment(environment), check=True, capture_output=True).stdout

    assert order({}) == order({}) != order({"PYTHONHASHSEED": "1"})


CLICK = """
import click
@click.command()
@click.option("--rate", type=float, required=True)
def main(rate): ...
if __name__ == "__main__":
    main()
"""
ABSL = """
from absl import app, flags
if "rate" not in flags.FLAGS:
    flags.DEFINE_float("rate", None, "How fast.")
def main(_): ...
if __name__ == "__main__":
    app.run(main)
"""


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        (CLICK, [], "Missing option '--rate'."),
        (CLICK, ["--rate", "high"], "Invalid value for '--rate': 'high' is not a valid float."),
        (CLICK, ["--speed"], "No such option '--speed'."),
        (ABSL, ["--rate=high"], "flag --rate=high: could not convert string to float: 'high'"),
        (ABSL, ["--speed"], "Unknown command line flag 'speed'"),
    ],
)
def test_what_click_and_absl_find_wrong_with_the_arguments_is_said(text, arguments, problem, tmp_path, monkeypatch):
    script = tmp_path / "a.py"
    script.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    with pytest.raises(ConfigError) as caught:
        _run(script)
    assert str(caught.value).startswith(f"the arguments of a.py: {problem}")
    assert caught.value.fix == "give them in trainer.args, or as -- ARG… on the command line"


SEARCH = """
import keras
for width in (1, 2):
    model = keras.Sequential([keras.layers.Dense(width)])
    try:
        model.fit(width)
    except{what}:
        continue
"""


def searched(tmp_path, what: str, error: Exception | None) -> tuple[Any, list[int]]:
    """How a search for a good width ends if its first fit() raises that, and the widths that it has tried."""
    tried: list[int] = []

    def fit(_, call):
        tried.append(call.x)
        if call.x == 1 and error is not None:
            raise error

    script = tmp_path / "search.py"
    script.write_text(SEARCH.format(what=what))
    try:
        return run(script, fit), tried
    except Exception as raised:
        return raised, tried


def run(script: Path, fit: Callable[..., Any], calls: int = 1) -> Any:
    """How a script ends whose fit() is that."""
    takeover: Any = SimpleNamespace(fit=fit, agree=MagicMock(), held=MagicMock(), calls=calls, fits=0, summary={})
    settings = config.parse({"entrypoint": script.name, "output": {"directory": str(script.parent)}})
    env = Environment(peers=("worker-0:2222", "worker-1:2222"))
    return run_with(takeover, script, session_of(settings, env=env))


@pytest.mark.parametrize("what", [" Exception", ""])
def test_what_ends_the_job_is_no_error_of_the_scripts(what, tmp_path):
    """A search that continues after a failed trial stops on SIGTERM, and is not complete then."""
    outcome, tried = searched(tmp_path, what, StoppedError("stopped by SIGTERM after step 5, saved"))
    assert (outcome.code, tried) == (ExitCode.STOPPED, [1])
    for error in (PeerLostError("worker-1 does not answer"), tf.errors.UnavailableError(None, None, "Socket closed")):
        assert searched(tmp_path, what, error) == (error, [1])
    refused, tried = searched(tmp_path, what, ConfigError("batch_size is 0"))
    assert (str(refused), tried) == ("batch_size is 0, at search.py:6", [1])


@pytest.mark.parametrize(
    "then",
    [
        "except:\n    raise SystemExit(1)",
        "except BaseException as error:\n    raise RuntimeError('a trial failed') from error",
        "finally:\n    model.load_weights('best.weights.h5')",
        "finally:\n    raise SystemExit",
    ],
)
def test_what_a_script_raises_in_place_of_a_stop_is_a_stop(then, tmp_path):
    """A clean-up that fails since fit() has not come to its end, say: the job would never be started again."""

    def fit(*_):
        raise StoppedError("stopped by SIGTERM after step 5, saved")

    script = tmp_path / "cleans_up.py"
    script.write_text(f"import keras\nmodel = keras.Sequential()\ntry:\n    model.fit([])\n{then}\n")
    assert run(script, fit).code == ExitCode.STOPPED


@pytest.mark.parametrize("error", [NotFiniteError("the loss is nan"), ValueError("wrong"), None])
def test_other_errors_are_the_scripts_to_handle(error, tmp_path):
    outcome, tried = searched(tmp_path, " Exception", error)
    assert (outcome.code, tried) == (ExitCode.DONE, [1, 2])


TRAINING = """
import keras
def train():
    keras.Sequential([keras.layers.Dense(1)]).fit([])
"""


def refuse(*_):
    raise ConfigError("no rows")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from lib_of_a_test.training import train\ntrain()", "no rows, at lib_of_a_test/training.py:4"),
        ("import keras\nkeras.Sequential().fit([])", "no rows, at a.py:2"),
        ("from .training import train", "a.py is part of a package, as `python -m` runs it: attempted relative import"),
    ],
)
def test_an_error_names_the_line_of_the_script_or_of_a_module_beside_it(text, message, tmp_path):
    (tmp_path / "lib_of_a_test").mkdir()
    (tmp_path / "lib_of_a_test/training.py").write_text(TRAINING)
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "a.py", refuse)
    assert str(caught.value).startswith(message)


def test_a_call_in_a_thread_is_refused_there_and_the_rest_goes_on(tmp_path, monkeypatch):
    """A thread's error is not the script's: it must not end a training of hours when that is done."""
    tried: list[Any] = []
    refused: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: refused.append(raised.exc_value))
    lines = [
        "import keras, threading",
        "model = keras.Sequential()",
        "threads = [threading.Thread(target=model.fit, args=([],))]",
        "threads[0].start()",
        "threads[0].join()",
        "model.fit([1])",
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert run(tmp_path / "a.py", lambda _, call: tried.append(call.x)).code == ExitCode.DONE
    assert tried == [[1]]
    assert [str(error) for error in refused] == ["fit() is called in a thread of the script's own"]


def test_a_script_may_leave_by_os_exit_and_so_may_its_children(tmp_path):
    lines = [
        "import os",
        "child = os.fork()",
        "if child == 0:",
        "    os._exit(7)",
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7",
    ]
    script = tmp_path / "a.py"
    script.write_text("\n".join([*lines, "os._exit(0)", "assert False"]))
    assert run(script, refuse).code == ExitCode.DONE
    script.write_text("\n".join([*lines, "os._exit(3)"]))
    with pytest.raises(ExitedError, match=r"a\.py ended with sys\.exit\(3\), at a\.py:6"):
        run(script, refuse)


def test_a_handler_of_sigterm_in_a_script_is_left_out(tmp_path, capsys):
    """With one that saves and calls sys.exit(), a stopped job would be complete."""
    lines = [
        "import os, signal",
        "before = signal.getsignal(signal.SIGTERM)",
        "assert signal.signal(signal.SIGTERM, lambda *_: exit()) == signal.getsignal(signal.SIGTERM) == before",
        "assert signal.signal(signal.SIGUSR2, signal.signal(signal.SIGUSR2, print)) is print",
        "child = os.fork()",
        "if child == 0:",
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "    os._exit(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)",
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1",
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert run(tmp_path / "a.py", refuse).code == ExitCode.DONE
    assert capsys.readouterr().out.count("signal.signal(SIGTERM) in the script is left out") == 1


def test_a_script_that_calls_fit_in_a_thread_alone_ends_with_that(tmp_path, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    lines = [
        "import keras, threading",
        "thread = threading.Thread(target=keras.Sequential().fit, args=([],))",
        "thread.start()",
        "thread.join()",
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"fit\(\) is called in a thread of the script's own"):
        run(tmp_path / "a.py", refuse, calls=0)


def test_a_script_of_a_package_has_its_relative_imports(tmp_path, monkeypatch):
    package = tmp_path / "package_of_a_test/deep"
    package.mkdir(parents=True)
    (package.parent / "training.py").write_text(TRAINING)
    (package / "a.py").write_text("from ..training import train\nif __name__ == '__main__': train()")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"no rows, at a\.py:2"):
        run(package / "a.py", refuse)


def test_a_relative_import_of_a_module_beside_the_script_is_not_the_scripts(tmp_path):
    (tmp_path / "helper_of_a_test.py").write_text("from .steps import train\n")
    (tmp_path / "a.py").write_text("import helper_of_a_test")
    with pytest.raises(ImportError, match="attempted relative import"):
        run(tmp_path / "a.py", refuse)
