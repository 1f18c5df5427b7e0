"""model.save() and similar functions in a script: each worker saves to the script's path, which several may share."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import keras
from keras.src.utils import file_utils

from tfgpujob_trainer.script.held import Held
from tfgpujob_trainer.script.scope import JobScope


def saving(original: Callable[..., Any], held: Held, scope: JobScope, *, is_chief: bool) -> Callable[..., Any]:
    """Each worker saves to the script's path, atomically: they may share it, and all have the same weights."""

    @wraps(original)
    def save(model: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        path = Path(filepath)
        with held.as_compiled(model), scope.left():
            if is_chief and path.is_dir():
                return original(model, filepath, *args, **kwargs)
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".saving-") as folder:
                result = original(model, f"{folder}/{path.name}", *args, **kwargs)
                publish(Path(folder, path.name), path, is_chief=is_chief)
                return result

    return save


def places_of(function: Callable[..., Any]) -> list[Any]:
    """Keras' class and modules that have the function: model.save() looks it up in one, keras.models is another."""
    loaded = [module for name, module in list(sys.modules.items()) if "keras" in name]
    return [one for one in (keras.Model, *loaded) if vars(one).get(function.__name__) is function]


@contextmanager
def shared_folders() -> Iterator[None]:
    """Keras' callbacks create the folder that they save to, unless it exists: another worker may create it in
    between.
    """
    remote = file_utils.makedirs

    def makedirs(path: str) -> None:
        if file_utils.is_remote_path(path):
            remote(path)
        else:
            Path(path).mkdir(parents=True, exist_ok=True)

    with mock.patch.object(file_utils, "makedirs", makedirs):
        yield


def publish(made: Path, path: Path, *, is_chief: bool) -> None:
    """Move what was saved to the script's path; a folder that another worker has put there has the same content."""
    if made.is_dir() and (is_chief or not path.exists()):
        try:
            made.replace(path)
        except OSError:  # it has appeared meanwhile, with that model, or as the parent of another worker's folder
            shutil.copytree(made, path, dirs_exist_ok=True)
    elif made.is_file():
        made.replace(path)
