"""What is said of a parameter server's memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tfgpujob_trainer.parameter_server import memory_limits
from tfgpujob_trainer.parameter_server.variable_placement import describe_placement

GIB = 1 << 30


def variable(server: int, rows: int):
    device = f"/job:ps/replica:0/task:{server}/device:CPU:0"
    return SimpleNamespace(value=SimpleNamespace(device=device), shape=(rows, 256), dtype="float32")


VARIABLES = {"model/0000/table": variable(0, 2 << 20), "model/0001/kernel": variable(1, 1 << 10)}


def test_who_holds_how_much_of_what_it_may_use_is_said():
    (line,) = describe_placement(VARIABLES, {})
    assert line.startswith("variables: ps-0 2048.00 MiB, ps-1 1.00 MiB; the largest, model/0000/table, has 2048.00 MiB")
    line, *more = describe_placement(VARIABLES, {"ps-0": 5 * GIB, "ps-1": 5 * GIB})
    assert "ps-0 2048.00 MiB of 5120.00 MiB, ps-1 1.00 MiB of 5120.00 MiB" in line
    assert more == []


def test_a_table_that_fits_only_once_is_warned_of():
    _, warning = describe_placement(VARIABLES, {"ps-0": 4 * GIB, "ps-1": GIB})
    assert warning.startswith("too little memory on ps-0 to hold variables twice")
    assert "raise the limit to 4696.00 MiB" in warning


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1073741824\n"}, GIB),
        ({"memory.max": "max\n"}, 0),
        ({"memory.limit_in_bytes": "1073741824\n"}, GIB),
        ({"memory.limit_in_bytes": "9223372036854771712\n"}, 0),
        ({}, 0),
    ],
)
def test_the_limit_is_that_of_the_container(files, limit, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = ("memory.max", "memory.limit_in_bytes")
    monkeypatch.setattr(memory_limits, "_LIMITS", tuple(tmp_path / name for name in names))
    assert memory_limits.limit_of_this_container() == limit
