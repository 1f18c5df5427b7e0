"""Unspecific errors of TensorFlow, with their cause and the line to change."""

from __future__ import annotations

import re
from bdb import BdbQuit
from pathlib import Path
from traceback import walk_tb

from tfgpujob_trainer.contract.exits import ConfigError, users_place

_RENAMED = {"experimental_run_v2": "run", "experimental_make_numpy_dataset": "experimental_distribute_dataset"}
"""Removed methods of a strategy, and their replacements."""
_ABSENT = re.compile(r"object has no attribute '(\w+)'")
_OF_AUTOGRAPH = re.compile(r'File "([^"]+)", line (\d+), in \w+  \*')
"""AutoGraph's form of lines of a tf.function, whose frames are in a generated file."""
_ASKED = "EOF when reading a line"
_DOWNLOAD = re.compile(r"URL fetch failure on \S+: (?:None -- )?.{1,200}|<urlopen error .{1,200}>")
"""What Keras and urllib say."""
_OFF_THE_MESH = "but was expecting a DTensor"
"""What DTensor says of an operation on a value of a mesh and an ordinary one."""
_TPU = "tpu_cluster_resolver.py"
_PART = re.compile(r"(?<!\S)(?>(\S+?)_temp[^\s;]*); No such file or directory.{0,4096}/job:ps/", re.DOTALL)
"""What a parameter server says that should write its part of a checkpoint into a folder that it does not have."""


def with_cause(error: Exception) -> Exception:
    """A ConfigError that names the cause, if it is known; else the same error."""
    return _of_a_mesh(error) or _of_what_a_job_lacks(error) or _of_a_program(error)


def _of_a_mesh(error: Exception) -> ConfigError | None:
    if _OFF_THE_MESH in str(error):
        fix = "compute in fit(), predict() or train_on_batch(), with a train_step() of the model; read by np.asarray()"
        return ConfigError(f"the script itself computes with a value that is divided over a mesh{_place(error)}", fix)
    refused = error.__context__
    if type(error).__name__ == "StagingError" and isinstance(refused, ConfigError):  # AutoGraph's, of a tf.function
        return ConfigError(f"{refused}{_place(error)}", refused.fix)
    return None


def _of_what_a_job_lacks(error: Exception) -> ConfigError | None:
    if isinstance(error, BdbQuit):
        return ConfigError(f"breakpoint() needs a terminal, and a job has none{_place(error)}", "remove it")
    if isinstance(error, EOFError) and _ASKED in str(error):
        fix = "take the value from sys.argv or argparse, and give it after --"
        return ConfigError(f"input() needs a terminal, and a job has none{_place(error)}", fix)
    if isinstance(error, NameError) and error.name == "get_ipython":
        return ConfigError(f"get_ipython() exists in a notebook only{_place(error)}", "remove the line")
    if (download := _DOWNLOAD.search(str(error))) is not None:
        fix = "download it where there is a network, then send it with the code (--with PATH), or mount a volume"
        return ConfigError(f"a download has failed: {download[0]}{_place(error)}", fix)
    return None


def _of_a_program(error: Exception) -> Exception:
    absent = _ABSENT.search(str(error)) if isinstance(error, AttributeError) else None
    if absent is not None and (new := _RENAMED.get(absent[1])) is not None:
        was = f"strategy.{absent[1]}() is strategy.{new}() in this TensorFlow{_place(error)}"
        return ConfigError(was, f"write strategy.{new}( there")
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    if any(file.endswith(_TPU) for file in files):
        fix = (
            "remove the resolver: a MultiWorkerMirroredStrategy() or MirroredStrategy() finds the job's devices itself"
        )
        return ConfigError(f"TPUClusterResolver looks for a TPU, and a job has GPUs or CPUs{_place(error)}", fix)
    if (part := _PART.search(str(error))) is not None:
        what = (
            f"{part[1]} is a checkpoint of which each parameter server writes its part, and they do not see its folder"
        )
        return ConfigError(
            f"{what}{_place(error)}", "keep it in a volume that all pods share: tfgpu submit --claim NAME"
        )
    return error


def _place(error: Exception) -> str:
    traced = _OF_AUTOGRAPH.findall(str(error))
    return f", at {Path(traced[-1][0]).name}:{traced[-1][1]}" if traced else users_place(error)
