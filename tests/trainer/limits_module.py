"""A module whose training uses up something of the machine: threads, descriptors, memory, … as TEST_USE says."""

import contextlib
import ctypes
import mmap
import os
import resource
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MIB = 1 << 20
DIRECTORY = Path(os.environ["TEST_DIRECTORY"])
held: list[Any] = []


def threads():
    while True:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def threads_of_tensorflow():
    """All that Python gets, and then some of C++, once the test has seen the warning."""
    try:
        threads()
    except RuntimeError:
        while not (DIRECTORY / "seen").exists():
            time.sleep(0.05)
    tf.distribute.Server.create_local_server()


def descriptors(left=0):
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            if not left:
                raise
            for _ in range(left):
                os.close(held.pop())
            return


def descriptors_of_tensorflow():
    for _ in tf.data.Dataset.range(1).prefetch(1):  # whatever it loads is loaded now
        descriptors(left=1)
        held.append(os.open(os.devnull, os.O_RDONLY))
    tf.io.read_file(__file__)


def shared():
    while True:
        segment = shared_memory.SharedMemory(create=True, size=MIB)
        np.ndarray(MIB, "uint8", segment.buf)[:] = 1
        held.append(segment)


def shared_without_a_name():
    file = os.open("/dev/shm/segment", os.O_CREAT | os.O_RDWR)
    while True:
        os.write(file, b"x" * MIB)


def shared_that_gives_back():
    """What is refused as a whole takes nothing."""
    file = os.open("/dev/shm/segment", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(file, 0, 64 * MIB)


def shared_by_tensorflow():
    cached = tf.data.Dataset.from_tensors(tf.ones((8 * MIB,))).repeat(4).cache("/dev/shm/cache")
    for _ in cached:
        pass


def locked():
    memory = mmap.mmap(-1, 4 * MIB)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(4 * MIB)):
        error = ctypes.get_errno()
        raise OSError(error, f"mlock: {os.strerror(error)}")


def file():
    with (DIRECTORY / "large").open("wb") as target:
        target.write(b"x" * 32 * MIB)


def memory_of_tensorflow():
    """C++ that is refused memory: an uncaught std::bad_alloc."""
    try:
        while True:
            held.append(bytearray(1 << 16))
    except MemoryError:
        pass
    while True:
        with contextlib.suppress(MemoryError, tf.errors.OpError):
            held.extend(tf.data.Dataset.range(number) for number in range(10_000))


def stacks():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + 256 * MIB,) * 2)
    threads()


def memory():
    held.append(bytearray(4096 * MIB))


USES = {
    function.__name__: function
    for function in (
        threads,
        threads_of_tensorflow,
        descriptors,
        descriptors_of_tensorflow,
        shared,
        shared_without_a_name,
        shared_that_gives_back,
        shared_by_tensorflow,
        locked,
        file,
        memory_of_tensorflow,
        stacks,
        memory,
    )
}
if os.environ.get("TEST_WHEN") == "import":
    descriptors(left=4) if os.environ["TEST_USE"] == "server" else USES[os.environ["TEST_USE"]]()


class Trigger(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        USES[os.environ["TEST_USE"]]()


def callbacks():
    return [Trigger()]


def model():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    net.compile("sgd", "mse")
    return net


def data(split):
    return np.ones((256, 6), "float32"), np.ones((256, 3), "float32")
