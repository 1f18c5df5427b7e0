"""The serial and deep tests of the cluster, in parts that CI runs one of."""

from __future__ import annotations

import pytest
from tests.integration.parts import share, unit_of

WEIGHTS = {f"test_{name}.py::test": float(seconds) for seconds, name in enumerate("abcdefghijklmnopq", 1)}
LONGEST_FIRST = sorted(WEIGHTS, key=lambda unit: -WEIGHTS[unit])


def test_each_unit_is_in_one_shard_and_the_shards_take_as_long() -> None:
    shards = [share(LONGEST_FIRST, WEIGHTS, f"{k}/6") for k in range(1, 7)]
    assert sorted(unit for shard in shards for unit in shard) == sorted(WEIGHTS)
    seconds = [sum(WEIGHTS[unit] for unit in shard) for shard in shards]
    assert max(seconds) <= sum(seconds) / 6 * 4 / 3


@pytest.mark.parametrize("shard", ["0/6", "7/6", "2", "a/b"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    with pytest.raises(pytest.UsageError, match="write 1/6 to 6/6"):
        share(LONGEST_FIRST, WEIGHTS, shard)


def test_tests_that_share_a_fixture_stay_together() -> None:
    ids = [f"tests/integration/{name}" for name in ("test_nodes.py::test_a", "test_nodes.py::test_b[x]")]
    assert {unit_of(nodeid) for nodeid in ids} == {"tests/integration/test_nodes.py"}
    assert unit_of("tests/integration/test_cli.py::test_a") == "tests/integration/test_cli.py::test_a"
