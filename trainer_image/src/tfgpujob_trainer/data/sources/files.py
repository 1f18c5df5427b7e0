"""Declared sources that are files: TFRecord by record, image folders by file."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.sources import zero_copy
from tfgpujob_trainer.data.sources.base import Indexed, Rows, as_keras_float, batched, matching

_HEADER = 12
"""Bytes before a record: its length (uint64) and that number's checksum."""
_FOOTER = 4
_IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")


class Records(Indexed):
    """Records of TFRecord files. Their offsets are found once, so that any record can be read alone."""

    def __init__(self, files: Sequence[str], parse: Callable[[Any], Any], *, window: int, what: str) -> None:
        self._files, self._window = files, window
        with ThreadPoolExecutor(8) as pool:
            offsets = list(pool.map(lambda file: _offsets(file, what), files))
        self._starts = np.cumsum([0, *(len(o) for o in offsets)])
        self._offsets = np.concatenate(offsets)
        self.rows = len(self._offsets)
        if self.rows == 0:
            raise ConfigError(f"{what}: there is no record in {counted(len(files), 'TFRecord file')}")
        self._parse = batched(parse, tf.TensorSpec([], tf.string), what=what, name="parse()")
        self.policy = (
            f"by record: each worker reads its records of every global batch, because the offsets of all "
            f"{self.rows} records in {counted(len(files), 'file')} are known"
        )
        self.notes = (f"order: files at random, then records at random within {min(window, self.rows)}",)

    def permute(self, generator: np.random.Generator, rows: int) -> np.ndarray:
        """Files at random, records at random within a window, so that reads stay near each other."""
        order = np.concatenate(
            [np.arange(self._starts[f], self._starts[f + 1]) for f in generator.permutation(len(self._files))]
        )
        # Another border each epoch, or two records of different windows could never change places.
        border = int(generator.integers(0, self._window))
        for start in range(border - self._window, rows, self._window):
            part = order[max(start, 0) : start + self._window]
            part[:] = generator.permutation(part)
        return order

    def tensors(self, indices: np.ndarray) -> Rows:
        """Read and parse these records."""
        found: list[bytes] = [b""] * len(indices)
        of_file = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(of_file):
            with Path(self._files[number]).open("rb") as file:
                for place in np.flatnonzero(of_file == number):
                    found[place] = _record(file.fileno(), int(self._offsets[indices[place]]))
        parsed: Rows = self._parse(np.asarray(found, object))
        return parsed


class Images(Indexed):
    """Image files in one folder for each class; x is (height, width, channels) in 0 to 255, y the class."""

    def __init__(self, files: Sequence[str], labels: np.ndarray, classes: Sequence[str], decode: Any) -> None:
        self._files, self._labels, self._decode = np.asarray(files), labels, decode
        self.rows, self.classes = len(files), tuple(classes)
        self.policy = "by file: each worker reads its images of every global batch, because files have an index"
        self.notes = (f"{counted(len(files), 'image')} of {counted(len(classes), 'class', 'classes')}",)

    def tensors(self, indices: np.ndarray) -> Rows:
        """Read and decode these images."""
        (x,) = self._decode(self._files[indices].astype(object))
        return x, zero_copy.tensor(self._labels[indices])


def records(declared: Mapping[str, Any], what: str, window: int) -> Records:
    """`{"tfrecord": pattern or patterns, "parse": fn}`: fn takes one serialized record, gives x, y, weight."""
    if not callable(declared.get("parse")):
        raise ConfigError(f"{what}: 'tfrecord' needs 'parse'", 'add "parse": a function of one record')
    return Records(matching(declared["tfrecord"], what), declared["parse"], window=window, what=what)


def images(declared: Mapping[str, Any], what: str) -> Images:
    """`{"images": folder, "size": [height, width]}` with one folder for each class below it."""
    folder = Path(declared["images"])
    size, channels = declared.get("size"), declared.get("channels", 3)
    if not isinstance(size, (list, tuple)) or len(size) != 2:
        raise ConfigError(f"{what}: 'images' needs 'size'", 'such as "size": [224, 224]')
    present = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    classes = list(declared.get("classes", present))
    unknown = [name for name in present if name not in classes]
    if not present or unknown:
        problem = f"a folder {unknown[0]!r} that is not in 'classes'" if unknown else "no folders, one for each class"
        raise ConfigError(f"{what}: {folder} has {problem}", "put each class in a folder of its name")
    found = [
        (str(file), label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in _IMAGES
    ]
    if not found:
        raise ConfigError(f"{what}: no images ({', '.join(_IMAGES)}) under {folder}")

    def decode(path: Any) -> Any:
        image = tf.io.decode_image(tf.io.read_file(path), channels=channels, expand_animations=False)
        return tf.ensure_shape(as_keras_float(tf.image.resize(image, size)), [*size, channels])

    batch = batched(decode, tf.TensorSpec([], tf.string), what=what, name="decoding")
    return Images([f for f, _ in found], np.asarray([label for _, label in found]), classes, batch)


def _offsets(file: str, what: str) -> np.ndarray:
    """Where each record's header starts; raises ConfigError if the file does not end with a record."""
    found, at = [], 0
    with Path(file).open("rb") as opened:
        size, fd = os.fstat(opened.fileno()).st_size, opened.fileno()
        while at < size:
            header = os.pread(fd, _HEADER, at)
            found.append(at)
            at += _HEADER + _FOOTER + (struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else size)
    if at != size:
        raise ConfigError(
            f"{what}: {file} is cut off or no plain TFRecord file (record {len(found) - 1})",
            "write it again without compression, or return a tf.data.TFRecordDataset",
        )
    return np.asarray(found, np.int64)


def _record(fd: int, offset: int) -> bytes:
    length = struct.unpack("<Q", os.pread(fd, 8, offset))[0]
    return os.pread(fd, length, offset + _HEADER)
