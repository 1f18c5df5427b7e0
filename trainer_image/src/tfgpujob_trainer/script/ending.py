"""What Python does at the exit of a program, for a script in a process that is ended without it (task.end())."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tfgpujob_trainer.reporting.log import say

_LIBRARIES = ("tensorflow", "keras", "tfgpujob_trainer")
"""Their exit functions assume that devices and peers still exist."""


class AtExit:
    """Functions that a script, or a module that it imports, registers with atexit."""

    def __init__(self) -> None:
        self._registered: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect what is registered meanwhile."""
        with (
            mock.patch.object(atexit, "register", self._register),
            mock.patch.object(atexit, "unregister", self._unregister),
        ):
            yield

    def call(self) -> None:
        """Call them in reverse order. Errors are printed, as by Python, and change nothing else."""
        while self._registered:
            function, args, kwargs = self._registered.pop()
            try:
                function(*args, **kwargs)
            except Exception:  # noqa: BLE001 (as Python does)
                traceback.print_exc()

    def _register(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(getattr(function, "__module__", "")).startswith(_LIBRARIES):
            self._registered.append((function, args, kwargs))
        return function

    def _unregister(self, function: Any) -> None:
        self._registered = [one for one in self._registered if one[0] != function]


@contextmanager
def leaving_as_exiting() -> Iterator[None]:
    """os._exit() in the script ends the script as sys.exit() does: the process still has to say how it went."""
    original, process = os._exit, os.getpid()

    def leave(code: int) -> NoReturn:
        caller = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001 (whose call it is)
        is_child = os.getpid() != process or threading.current_thread() is not threading.main_thread()
        if is_child or caller.startswith(_LIBRARIES):
            original(code)
        raise SystemExit(code)

    with mock.patch.object(os, "_exit", leave):
        yield


@contextmanager
def stopping_as_the_job() -> Iterator[None]:
    """A script's own handler of SIGTERM is left out: it would end the script as if it were complete."""
    original, process = signal.signal, os.getpid()

    def handle(number: int, handler: Any) -> Any:
        is_ours = str(sys._getframe(1).f_globals.get("__name__")).startswith(_LIBRARIES[-1])  # noqa: SLF001
        if number != signal.SIGTERM or is_ours or os.getpid() != process:
            return original(number, handler)
        say("signal.signal(SIGTERM) in the script is left out: the trainer saves a checkpoint and stops")
        return signal.getsignal(number)

    with mock.patch.object(signal, "signal", handle):
        yield


def flush_files() -> None:
    """Flush open files. Deletes no object: a variable's server may be lost."""
    for one in gc.get_objects():
        if issubclass(type(one), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with suppress(OSError, ValueError):  # closed, detached, or on a disk that is full
                one.flush()


def remove_generated_files() -> None:
    """Remove the source files that TensorFlow's AutoGraph has written to the temporary directory, as it would at
    exit.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file"):
            with suppress(OSError):
                Path(str(module.__file__)).unlink()
