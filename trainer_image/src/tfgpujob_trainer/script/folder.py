"""The working directory of a plain script: on a user's machine its own; in a pod, one with a copy of the code.

A pod's code is mounted read-only. The first worker's directory is SCRIPT_DIR in the output directory, so that the
script's files are kept with the claim, and found again after a restart. Every other worker has one in its pod, or on a
user's machine in the folder of the run: two workers must not write the same file.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tfgpujob_contract.pod import PLACED, SCRIPT_DIR
from tfgpujob_contract.trainer_config import Output, TrainerConfig
from tfgpujob_trainer.checkpoints.completed import replace_file
from tfgpujob_trainer.checkpoints.object_store import object_store
from tfgpujob_trainer.contract.environment import CODE_DIRECTORY, Environment
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.log import say

COPIED_BYTES: Final = 64 << 20
"""Limit on code that is copied, the smallest files first. The others are links, so that large code costs nothing."""
LISTED: Final = 10_000
"""Files and folders of the code that are handled one by one; other folders become one link."""
_PLACED_AT: Final = 315532800
"""1980-01-01, the time of each file of the code: a file that the script has written since has another."""
_SHOWN: Final = 8
_HALF_WRITTEN: Final = re.compile(r"\.[0-9a-f]{8}")
"""The end of the names that `_beside` and `replace_file` give a file until it is complete; they begin with a dot."""


def enter(settings: TrainerConfig, env: Environment) -> Environment:
    """Change to the directory of the script; returns the environment in which it is the code's.

    Workers that train in step call this before any of them runs the script: each finds the files that the first one
    wrote before.
    """
    code, first = env.code_directory, Path(settings.output.directory, SCRIPT_DIR)
    if code != CODE_DIRECTORY and os.access(code, os.W_OK):
        if env.is_chief or env.files_directory is None:
            return env
        folder = env.files_directory
        shutil.rmtree(folder, ignore_errors=True)  # the first worker's folder has changed since
    else:
        folder = first if env.is_chief else _scratch(settings.output.directory, env)
        if not (env.is_chief or env.serves or env.is_evaluator):
            adopt(first, folder)
    place(code, folder)
    # Python would use compiled modules of changed code, because all files have the same time.
    sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    sys.path[:] = [str(folder) if entry == str(code) else entry for entry in sys.path]
    if Path.cwd().is_relative_to(code):  # unless the job names another folder to work in
        os.chdir(folder / Path.cwd().relative_to(code))
    if env.is_chief:
        say(f"{settings.entrypoint} runs in {folder}, with a copy of its code: {kept(settings.output)}")
    return dataclasses.replace(env, code_directory=folder)


def share_the_firsts(settings: TrainerConfig, env: Environment, code: Path) -> None:
    """Let a server of variables read and write relative paths where the chief does: each server writes its part of a
    tf.train.Checkpoint. `code`: the code's directory before `enter`."""
    if env.code_directory == env.files_directory:
        os.chdir(code)
    elif settings.output.claim is not None and (env.code_directory / PLACED).is_file():
        first = Path(settings.output.directory, SCRIPT_DIR)
        first.mkdir(parents=True, exist_ok=True)
        os.chdir(first)


def kept(output: Output) -> str:
    """What happens to the files that the script writes on the first worker."""
    if output.claim is not None:
        return f"what it writes there stays in the claim {output.claim}"
    if output.store is not None:
        copy = f"{output.store.rstrip('/')}/{SCRIPT_DIR}"
        return f"what it writes there goes with the pod, and at the end a copy of it to {copy}"
    return "without output.claim, what it writes there goes with the pod"


def copy_to_store(settings: TrainerConfig, env: Environment) -> None:
    """Copy the script's files on the first worker to the job's object store, if there is one."""
    store = object_store(settings.output.store)
    if store is not None and _is_firsts(env):
        for name in written(env.code_directory):
            store.put(env.code_directory.parent, f"{SCRIPT_DIR}/{name}")


def say_what_is_left(settings: TrainerConfig, env: Environment) -> None:
    """At the end of the script, on the first worker: log the files that it has written."""
    folder = env.code_directory
    if not _is_firsts(env):
        return
    if names := written(folder):
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        what = counted(len(names), "file or folder", "files and folders")
        say(f"{folder} has {what} that the script wrote: {', '.join(names[:_SHOWN])}{more}; {kept(settings.output)}")


def _is_firsts(env: Environment) -> bool:
    return env.is_chief and (env.code_directory / PLACED).is_file()


def _scratch(output: str, env: Environment) -> Path:
    """A folder that a process finds again after a restart in its pod."""
    number = zlib.crc32(f"{env.job_uid}{output}".encode())
    return Path(tempfile.gettempdir(), f"tfgpu-{SCRIPT_DIR}-{number:08x}-{env.name}")


def place(code: Path, folder: Path) -> None:
    """Put the code's files there. They replace those of earlier code, and no file that the script has written."""
    folder.mkdir(parents=True, exist_ok=True)
    before = _placed(folder)
    folders, found = _look(code, folder)
    _remember(folder, before | found.keys())
    for name in before - found.keys():
        if _is_of_code(folder / name, code):
            (folder / name).unlink()
            with suppress(OSError):  # it holds other files
                (folder / name).parent.rmdir()
    for name in folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    left: float = COPIED_BYTES
    for name, size in sorted(found.items(), key=lambda one: one[1]):
        left -= size
        if not os.path.lexists(folder / name) or (name in before and _is_of_code(folder / name, code)):
            _put(code / name, folder / name, copied=left >= 0)
    _remember(folder, found.keys())


def adopt(first: Path, folder: Path) -> None:
    """Copy what the script wrote on the first worker before, as far as this worker sees it."""
    for name in _of_script(first):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(folder / name)
        with suppress(FileNotFoundError):
            shutil.copy2(first / name, beside, follow_symlinks=False)
            beside.replace(folder / name)


def written(folder: Path) -> list[str]:
    """The files that the script wrote, and folders with only such files, by their names in the directory."""
    placed = {name.split("/")[0] for name in _placed(folder)}
    tops: dict[str, None] = {}
    for name in _of_script(folder):
        top, slash, _ = name.partition("/")
        tops[name if top in placed else top + slash] = None
    return list(tops)


def _of_script(folder: Path) -> Iterator[str]:
    placed = _placed(folder)
    for path, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted([*files, *(one for one in folders if Path(path, one).is_symlink())]):
            name = str(Path(path, file).relative_to(folder))
            half = file.startswith(".") and _HALF_WRITTEN.fullmatch(file[-9:])
            if half and str(Path(path, file[1:-9]).relative_to(folder)) in {PLACED, *placed}:
                continue  # an earlier attempt was ended meanwhile
            if name != PLACED and not (name in placed and _is_of_code(folder / name)):
                yield name


def _look(code: Path, folder: Path) -> tuple[list[str], dict[str, float]]:
    """The code's folders, and its files with their sizes; a folder that is not read is a file of infinite size: a link
    to one above it, the job's output directory, one of a tool, and those after the first LISTED files.

    Files and folders that other programs remove meanwhile are left out.
    """
    folders: list[str] = []
    found: dict[str, float] = {}
    seen, left, output = {_identity(folder)}, deque([""]), folder.resolve().parent
    while left:
        with suppress(FileNotFoundError):
            name = left.popleft()
            where = code / name
            if name and (_identity(where) in seen or where.resolve() == output or _is_of_a_tool(where)):
                if _identity(where) != _identity(folder):
                    found[name] = float("inf")
                continue
            seen.add(_identity(where))
            try:
                entries: list[os.DirEntry[str]] | None = sorted(os.scandir(where), key=lambda entry: entry.name)
            except PermissionError:
                entries = None
            if entries is None or (name and len(found) + len(entries) > LISTED):
                found[name] = float("inf")
                continue
            folders.append(name)
            for entry in entries:
                # ConfigMaps keep their files in ..data, and links to them where they belong.
                if entry.name.startswith("..") or entry.name == "__pycache__":
                    continue
                below = f"{name}/{entry.name}".lstrip("/")
                if entry.is_file():
                    found[below] = _size(entry)
                elif entry.is_dir():
                    left.append(below)
    return folders, found


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def _is_of_a_tool(where: Path) -> bool:
    """True for .git and the like, for virtual environments, and for runs of `tfgpu run`."""
    return where.name.startswith(".") or any((where / mark).exists() for mark in ("pyvenv.cfg", ".tfgpu"))


def _put(source: Path, target: Path, *, copied: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(target)
    if copied:
        try:
            shutil.copyfile(source, beside)
        except FileNotFoundError:
            return
        except PermissionError:
            beside.unlink(missing_ok=True)
        else:
            beside.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
            os.utime(beside, (_PLACED_AT, _PLACED_AT))
            beside.replace(target)
            return
    beside.symlink_to(source)
    beside.replace(target)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _is_of_code(path: Path, code: Path | None = None) -> bool:
    """True if a file whose name was placed there is the placed one, and not one that the script has written."""
    try:
        if path.is_symlink():
            return code is None or path.readlink().is_relative_to(code)
        return path.is_file() and int(path.stat().st_mtime) == _PLACED_AT
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _placed(folder: Path) -> set[str]:
    try:
        return set((folder / PLACED).read_text().splitlines())
    except OSError:
        return set()


def _remember(folder: Path, names: Iterable[str]) -> None:
    replace_file(folder / PLACED, "".join(f"{name}\n" for name in sorted(names)))
