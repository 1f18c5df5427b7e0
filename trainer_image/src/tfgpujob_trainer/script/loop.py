"""The process of a program with its own training loop: its working directory, its devices, and errors with their cause.

TensorFlow and Keras are unchanged. The program builds everything from TF_CONFIG, as anywhere else.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn
from unittest import mock

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.cluster.devices import prepare
from tfgpujob_trainer.cluster.leaving import leave_together
from tfgpujob_trainer.cluster.peer_names import resolve_peers
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.cluster.strategy import listening
from tfgpujob_trainer.contract import config, own_program, script
from tfgpujob_trainer.contract.config import parser
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, TrainerError, users_traceback
from tfgpujob_trainer.own_loop.supervised import new_status
from tfgpujob_trainer.parameter_server.serve import start_server
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script import folder
from tfgpujob_trainer.script.causes import with_cause
from tfgpujob_trainer.script.place import place_in

_TF_CONFIG = "TF_CONFIG"
_POLL_SECONDS = 0.2


def main(arguments: Sequence[str]) -> None:
    """Run the program to its end. Its exceptions pass through, with their cause where it is known."""
    options = parser().parse_args(arguments)
    settings, env = config.load(options.config, options.set), own_program.environment(os.environ)
    sys.excepthook = _print
    prepare(settings, env)
    code = env.code_directory
    env = folder.enter(settings, env)
    path = env.code_directory / settings.entrypoint
    if env.serves:
        folder.share_the_firsts(settings, env, code)
        if not script.starts_a_server(path):
            _serve(env, path)
    try:
        if not env.serves:
            resolve_peers(env)
        with (
            _tf_config_is_the_jobs(path),
            mock.patch.object(sys, "argv", [str(path), *(settings.args or ())]),
            mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        ):
            runpy.run_path(str(path), run_name="__main__")
        leave_together()
    except Exception as error:
        # It says of an exception what it is; a program that uses the library has its own.
        new_status(has_peers=env.has_peers)
        if (known := with_cause(error)) is not error:
            raise known from error
        raise
    finally:
        folder.say_what_is_left(settings, env)


def _print(_kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
    """The user's own part of what Python prints; of an error with its cause nothing, for that is said at the end."""
    if not isinstance(error, TrainerError):
        print(users_traceback(error), end="", file=sys.stderr)


def _serve(env: Environment, path: Path) -> NoReturn:
    """TensorFlow's server for a program that starts none: its chief would wait for it forever."""
    stop = StopFlag()
    with listening(env.name):
        address = start_server(json.loads(os.environ[_TF_CONFIG]))
    stop.listen()  # TensorFlow replaces the handler of SIGTERM when a server starts
    say(f"{env.name} serves at {address}: {path.name} starts no tf.distribute.Server")
    while not stop.set:
        time.sleep(_POLL_SECONDS)
    sys.stdout.flush()
    os._exit(int(ExitCode.STOPPED))


@contextmanager
def _tf_config_is_the_jobs(path: Path) -> Iterator[None]:
    """Raises ConfigError if the program sets another TF_CONFIG: its workers would wait for some that don't exist."""
    environ = type(os.environ)
    original, jobs = environ.__setitem__, os.environ.get(_TF_CONFIG)

    def set_item(self: Any, name: str, value: str) -> None:
        if name == _TF_CONFIG and value != jobs and (jobs is not None or _tasks(value) > 1):
            raise ConfigError(
                f"the program sets TF_CONFIG{place_in(path)}, and that is the job's",
                "remove the line: TF_CONFIG is set, and --workers says of how many (in a job: replicas)",
            )
        original(self, name, value)

    with mock.patch.object(environ, "__setitem__", set_item):
        yield


def _tasks(tf_config: str) -> int:
    try:
        return sum(len(tasks) for tasks in json.loads(tf_config)["cluster"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0


if __name__ == "__main__":
    main(sys.argv[1:])
