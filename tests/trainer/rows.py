"""The rows that tests of sources read, in each kind of source: row i is ([i, -i], i)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

ROWS = 23
FILES = (7, 1, 10, 5)
"""Records in each TFRecord file."""


def x_of(row):
    return np.stack([row, -row], -1).astype(np.float32)


def write_tfrecords(folder):
    """All rows, in FILES; gives the folder."""
    row = 0
    for number, count in enumerate(FILES):
        with tf.io.TFRecordWriter(str(folder / f"part-{number}")) as writer:
            for _ in range(count):
                writer.write(tf.io.serialize_tensor(tf.constant([row, -row], tf.float32)).numpy())
                row += 1
    return folder


def parse(record):
    x = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [2])
    return x, tf.cast(x[0], tf.int64)


def declared(folder, **more):
    return {"tfrecord": str(folder / "part-*"), "parse": parse, **more}


def dataset():
    return tf.data.Dataset.range(ROWS).map(lambda i: (tf.cast(tf.stack([i, -i]), tf.float32), i))


def generator():
    for row in range(ROWS):
        yield x_of(np.int64(row)), row
