"""trainer.requirements: packages that pip installs before the program starts. Imports no TensorFlow.

pip first resolves them together with the image's packages, and then installs the missing ones into a separate folder.
Dependencies of TensorFlow, Keras and the trainer stay at the image's versions. The folder's name is a hash of
everything that its content depends on, so that the next attempt can use it. Pods that prepare the same folder
concurrently each write their own and rename it; the first one stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_contract.variables import LocalVariable
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, NotFetchedError, StoppedError, TrainerError
from tfgpujob_trainer.reporting.log import say

_FILES: Final = ("-r", "--requirement", "-c", "--constraint")
_FOLDERS: Final = ("-f", "--find-links")
_EDITABLE: Final = ("-e", "--editable")
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_NO_SOURCE: Final = re.compile(r"^(build|runs)/|(^|/)\.|\.egg-info/")
"""Build output of pip, output of local runs, and hidden files."""
_TENSORFLOW: Final = ("tensorflow", "tensorflow-cpu")
"""Packages with the same modules: one of them is installed, and provides the other."""
_HELD: Final = (*_TENSORFLOW, "keras", "tensorboard", "tfgpujob-trainer")
_MODULES: Final = ("tensorflow", "keras", "numpy", "tfgpujob_trainer", "tfgpujob_contract")
_UNREACHABLE: Final = (
    "Retrying (Retry(",
    "Max retries exceeded",
    "Temporary failure in name resolution",
    "ReadTimeoutError",
    "ConnectionResetError",
    " Server Error",
)
"""What pip prints before it finds no version, if the index did not answer."""


def prepare(settings: TrainerConfig, env: Environment, variables: Mapping[str, str]) -> Path | None:
    """The folder with the installed packages; None if the list is empty. `variables`: pip's environment.

    Raises ConfigError for an error in the list, NotFetchedError if the index does not answer.
    """
    if not settings.requirements:
        return None
    code, directory = env.code_directory, variables.get(LocalVariable.REQUIREMENTS_DIR)
    root = Path(directory) if directory else Path(settings.output.directory) / "requirements"
    folder = root / _key(settings.requirements, code)
    if folder.is_dir():
        say(f"requirements: installed before, in {folder}")
        return folder
    if importlib.util.find_spec("pip") is None:
        raise ConfigError("trainer.requirements is set, and pip is not installed", "install pip, or the packages")
    root.mkdir(parents=True, exist_ok=True)
    with _stoppable(), tempfile.TemporaryDirectory(prefix="tfgpu-requirements-") as scratch:
        pip = _Pip(settings.requirements, code, Path(scratch), variables)
        missing = pip.resolve()
        target = _own_folder(root, folder.name)
        try:
            if missing:
                say(f"requirements: installs {', '.join(f'{one.name} {one.version}' for one in missing)} in {folder}")
                pip.install(missing, target)
            else:
                say("requirements: nothing to install, the image has them all")
            try:
                target.rename(folder)
            except OSError:
                if not folder.is_dir():  # if it is, another pod was faster, with the same content
                    raise
        finally:
            shutil.rmtree(target, ignore_errors=True)
    return folder


def with_packages(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of a process that sees the packages, before those of the image."""
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), variables.get("PYTHONPATH"))))}


class _DiskFullError(TrainerError):
    cause = "DiskFull"


class _Package:
    """A package that pip would install."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        """From pip's installation report."""
        self.name, self.version = found["metadata"]["name"], found["metadata"]["version"]
        where = found["download_info"]
        archive = where.get("archive_info") or {}
        hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)] if archive.get("hash") else [])
        self.line = f"{self.name} @ {where['url']}" if found["is_direct"] else f"{self.name}=={self.version}"
        self.hashes = [f" --hash={kind}:{value}" for kind, value in hashes.items() if kind == "sha256"]


class _Pip:
    def __init__(self, lines: Sequence[str], code: Path, scratch: Path, variables: Mapping[str, str]) -> None:
        self._code, self._scratch = code, scratch
        self._file, self._held = scratch / "requirements.txt", scratch / "held.txt"
        self._file.write_text("".join(f"{_absolute(line, code)}\n" for line in lines))
        held = _held()
        provided = _provided(held, scratch / "provided")
        self._held.write_text("".join(f"{name}=={version}\n" for name, version in {**held, **provided}.items()))
        known = [str(scratch / "provided"), variables.get("PYTHONPATH")]
        self._variables = {**variables, "PYTHONPATH": os.pathsep.join(filter(None, known))}

    def resolve(self) -> list[_Package]:
        """The missing packages, in versions that are compatible with one another and with the image."""
        report = self._scratch / "report.json"
        self._run("--dry-run", "--report", str(report), "-c", str(self._held), "-r", str(self._file))
        return [_Package(found) for found in json.loads(report.read_text())["install"]]

    def install(self, packages: Sequence[_Package], target: Path) -> None:
        """Exactly these: resolving again could give others."""
        hashed = all(package.hashes for package in packages)
        lines = [package.line + "".join(package.hashes if hashed else ()) for package in packages]
        exact = self._scratch / "exact.txt"
        options = [line for line in self._options() if not line.startswith("--require-hashes")]
        exact.write_text("".join(f"{line}\n" for line in [*options, *lines]))
        self._run("--no-deps", "--target", str(target), "-r", str(exact))
        for module in _MODULES:
            if (target / module).exists():
                raise ConfigError(
                    f"trainer.requirements: brings a {module} of its own, beside the image's",
                    "leave it out, or build an image with it and name it in spec.image",
                )

    def _options(self) -> Iterator[str]:
        """Options in the list and its files that set where packages are and which archives may be used."""
        for line, base in _lines(self._file.read_text().splitlines(), self._code):
            if line.startswith("-") and _argument(line, _FILES) is None:
                folder = _argument(line, _FOLDERS)
                inside = None if folder is None else base / folder
                yield f"--find-links {inside}" if inside is not None and inside.is_dir() else line

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        with subprocess.Popen(
            [*command, "--progress-bar", "off", *arguments],
            cwd=self._code if self._code.is_dir() else None,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            try:
                said = process.communicate()[0]
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            print(said, end="", flush=True)
            raise _refusal(said, process.returncode)


def _refusal(said: str, code: int) -> TrainerError:
    """The error for pip's exit code and output."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    conflict = [line for line in lines if line.startswith("The user requested") or " depends on " in line]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-2:]
    if any(words in said for words in _UNREACHABLE) or code < 0:
        what = next((line for line in lines if any(words in line for words in _UNREACHABLE)), f"pip ended with {code}")
        fix = "set PIP_INDEX_URL or a proxy in the container's env, or bring wheels and say --no-index; this is retried"
        return NotFetchedError(f"trainer.requirements: the package index does not answer: {what[:300]}", fix)
    if conflict:
        of_image = [line.replace("The user requested (constraint)", "this image has") for line in conflict]
        what = "; ".join(line.replace("The user requested", "asked for is") for line in dict.fromkeys(of_image))
        fix = "choose versions that suit, or build an image with those and name it in spec.image"
        return ConfigError(f"trainer.requirements contradict what there is: {what[:600]}", fix)
    if "DO NOT MATCH THE HASHES" in said or "require-hashes" in said or "Hashes are required" in said:
        detail = " ".join(lines[lines.index(next(line for line in lines if "hash" in line.lower())) :][:6])
        return ConfigError(f"trainer.requirements: {detail[:500]}", "lock them again, for instance with pip-compile")
    if "No space left on device" in said:
        full = next(line for line in lines if "No space left" in line)
        return _DiskFullError(f"trainer.requirements: {full[:400]}", "ask for a larger volume")
    fix = "correct the line; wheels of your own are found by --find-links FOLDER, a folder of the code"
    return ConfigError(f"trainer.requirements: pip says: {'; '.join(errors)[:500]}", fix)


def _key(lines: Sequence[str], code: Path) -> str:
    """A hash of what the installed packages depend on: the lines, the files they name, Python and the image."""
    image = sorted({f"{_name(one)}=={one.version}" for one in metadata.distributions() if _name(one)})
    parts: list[Any] = [list(lines), sys.version, sysconfig.get_platform(), image]
    for line, base in _lines(lines, code):
        found = [file for file in _named(line, base) if file.is_file()]
        parts += [[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in found]
        parts.append(line)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def _named(line: str, base: Path) -> list[Path]:
    """Files that a line may take a package from: wheels, and a folder with its source."""
    if folder := _argument(line, _FOLDERS):
        return sorted((base / folder).glob("*"))
    place = (_argument(line, _EDITABLE) or line.split(" ", maxsplit=1)[0]).partition("[")[0]
    if not ("/" in place or place.startswith(".")) or not (base / place).is_dir():
        return [base / place]
    inside = (file for file in sorted((base / place).rglob("*")) if not file.match("*.py[co]"))
    return [file for file in inside if not _NO_SOURCE.search(str(file.relative_to(base / place)))]


def _lines(lines: Sequence[str], base: Path, above: tuple[Path, ...] = ()) -> Iterator[tuple[str, Path]]:
    """Each line, and those of the files that it includes, with the folder that its paths are relative to."""
    for line in lines:
        yield line.strip(), base
        named = _argument(line, _FILES)
        if named is not None and "://" not in named:
            file = base / named
            fix = "name a file of trainer.code, relative to its folder"
            if file in above:
                raise ConfigError(f"trainer.requirements: {line.strip()}: {file} names itself", fix)
            try:
                inside = file.read_text().splitlines()
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "is no text in UTF-8"
                raise ConfigError(f"trainer.requirements: {line.strip()}: {file}: {why}", fix) from error
            yield from _lines(inside, file.parent, (*above, file))


def _argument(line: str, options: Sequence[str]) -> str | None:
    """The value of one of these options in the line; None if it has none of them."""
    written = _COMMENT.sub("", line).strip()
    for option in options:
        given = written.removeprefix(option)
        if given != written and given and (given[0] in "= \t" or len(option) == 2):
            return given.removeprefix("=").strip()
    return None


def _absolute(line: str, code: Path) -> str:
    """The line with an absolute path: pip would look for a relative one beside its own copy of the list first."""
    for option in (*_FILES, *_FOLDERS):
        named = _argument(line, (option,))
        if named is not None and "://" not in named:
            return f"{option} {code / named}"
    return line


def _held() -> dict[str, str]:
    """Packages of the image that must not change, with their versions: the trainer's dependencies and theirs."""
    held: dict[str, str] = {}
    todo = [*_HELD, *(name for one in metadata.distributions() if (name := _name(one)).startswith("nvidia-"))]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in held:
            continue
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        held[name] = found.version
        needs = [Requirement(text) for text in found.requires or ()]
        todo += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return held


def _provided(held: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Make pip consider TensorFlow's other name installed: if it were installed as well, it would hide this one."""
    version = next((held[name] for name in _TENSORFLOW if name in held), None)
    others = {name: version for name in _TENSORFLOW if version is not None and name not in held}
    for name, its_version in others.items():
        info = folder / f"{name.replace('-', '_')}-{its_version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {its_version}\n")
    return others


def _name(found: metadata.Distribution) -> str:
    return canonicalize_name(found.metadata["Name"] or "")


def _own_folder(root: Path, key: str) -> Path:
    """An empty folder of this process; an incomplete one of an earlier process with the same name is deleted."""
    mine = f".{key}-{socket.gethostname()}-{os.getpid()}"
    for left in root.glob(f".*-{socket.gethostname()}-*"):
        if left.name == mine or not Path(f"/proc/{left.name.rpartition('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    target = root / mine
    target.mkdir()
    return target


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGTERM end it, which does nothing by default in process 1 of a container."""

    def stop(_number: int, _frame: object) -> None:
        raise StoppedError("stopped by a signal before training began")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
