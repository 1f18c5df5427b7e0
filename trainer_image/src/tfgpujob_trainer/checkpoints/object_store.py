"""A copy of the checkpoints and of the model in an object store, by an fsspec URL such as s3://bucket/run.

Object stores have no rename and no directory that appears atomically, so a checkpoint is completed on the local disk
first. Then its files are copied, COMMIT last; a checkpoint without COMMIT does not exist there either.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import fsspec

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.reporting.log import say

COMMIT = "COMMIT"


def object_store(url: str | None) -> ObjectStore | None:
    """The object store of `trainer.output.store`, if it is set."""
    return None if url is None else ObjectStore(url)


class ObjectStore:
    """The folder at one URL. Raises ConfigError for a URL that can't be used, OSError for later errors."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"trainer.output.store: {url}: {error}", "use s3://bucket/folder, or a protocol of fsspec in your image"
            ) from error
        self._root = root.rstrip("/")

    def owner(self) -> Any:
        """The content of OWNER.json, or None."""
        try:
            return json.loads(self._files.cat_file(self._at("checkpoints/OWNER.json")))
        except (FileNotFoundError, ValueError):
            return None

    def own(self, record: dict[str, Any]) -> None:
        """Write OWNER.json."""
        self._files.pipe_file(self._at("checkpoints/OWNER.json"), json.dumps(record).encode())

    def publish(self, checkpoint: Path) -> None:
        """Copy a committed checkpoint."""
        target = f"checkpoints/{checkpoint.name}"
        self.remove(checkpoint.name)
        files = sorted(p for p in checkpoint.iterdir() if p.name != COMMIT)
        for file in [*files, checkpoint / COMMIT]:
            self._files.put_file(str(file), self._at(f"{target}/{file.name}"))

    def checkpoints(self) -> list[str]:
        """Names of the committed checkpoints, the newest first."""
        self._files.invalidate_cache()
        found = self._files.glob(self._at(f"checkpoints/step-*/{COMMIT}"))
        return sorted((path.split("/")[-2] for path in found), reverse=True)

    def fetch(self, name: str, directory: Path) -> None:
        """Copy a checkpoint into `directory`, where it appears atomically."""
        temporary = directory / f".{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for path in self._files.ls(self._at(f"checkpoints/{name}"), detail=False):
            self._files.get_file(path, str(temporary / path.rsplit("/", 1)[-1]))
        shutil.rmtree(directory / name, ignore_errors=True)
        temporary.replace(directory / name)
        say(f"{name} fetched from {self.url}")

    def remove(self, name: str) -> None:
        """Delete a checkpoint, COMMIT first."""
        folder = self._at(f"checkpoints/{name}")
        if self._files.exists(f"{folder}/{COMMIT}"):
            self._files.rm_file(f"{folder}/{COMMIT}")
        if self._files.exists(folder):
            self._files.rm(folder, recursive=True)

    def get(self, name: str, path: Path) -> None:
        """Copy a file to `path` if it exists."""
        if self._files.exists(self._at(name)):
            self._files.get_file(self._at(name), str(path))

    def put(self, output: Path, name: str) -> None:
        """Copy a file or folder of the output directory, if it exists."""
        path = output / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                self._files.put_file(str(file), self._at(str(file.relative_to(output))))

    def folder(self, name: str) -> ObjectStoreFolder:
        """A folder in it."""
        return ObjectStoreFolder(self._files, self._at(name), f"{self.url}/{name}")

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


class ObjectStoreFolder:
    """One folder of an object store, whose objects appear complete: an OutputFolder of predict/parts.py."""

    def __init__(self, files: Any, path: str, url: str) -> None:
        self._files, self._path, self._url = files, path, url

    @property
    def name(self) -> str:
        """Its URL."""
        return self._url

    def names(self) -> set[str]:
        """The existing objects."""
        self._files.invalidate_cache()
        try:
            return {path.rsplit("/", 1)[-1] for path in self._files.ls(self._path, detail=False)}
        except FileNotFoundError:
            return set()

    def read(self, name: str) -> bytes:
        """The content of an object."""
        return bytes(self._files.cat_file(f"{self._path}/{name}"))

    def create(self, name: str, content: bytes) -> None:
        """A conditional request, if the store supports it."""
        self._files.pipe_file(f"{self._path}/{name}", content, mode="create")

    def replace(self, name: str, content: bytes) -> None:
        """Objects are written completely, or not at all."""
        self._files.pipe_file(f"{self._path}/{name}", content)

    def remove(self, names: Collection[str]) -> None:
        """In one request, if the store supports it."""
        if names:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm([f"{self._path}/{name}" for name in names])

    def sweep(self, starts: Collection[str]) -> None:
        """No incomplete object is visible."""
