"""One value that can't be read never hides what stands beside it."""

from __future__ import annotations

import random

import orjson
import pytest
from tests.harness.poison import ODD, POISONS

from tfgpujob.kube.decoding import MAX_LEVELS, decoded


@pytest.mark.parametrize("name", [*POISONS, *ODD])
def test_what_stands_beside_a_poison_is_read(name: str) -> None:
    text = f'{{"items": [{{"a": 1}}, {{"b": {(POISONS | ODD)[name]}, "c": [2]}}, {{"d": "e"}}]}}'
    first, second, third = decoded(text.encode("latin-1"))["items"]
    assert (first, second["c"], third) == ({"a": 1}, [2], {"d": "e"})


def test_what_is_cut_is_still_too_deep() -> None:
    value, levels = decoded(b"[" * 5000 + b"]" * 5000), 0
    while isinstance(value, list) and value:
        value, levels = value[0], levels + 1
    assert (value, levels) == (None, MAX_LEVELS)


def test_numbers_keep_their_kind() -> None:
    deep = "[" * 2000 + "]" * 2000
    value = decoded(f'[{deep}, 1, -2, 1.0, 1e3, {2**63 - 1}, {2**70}, 1e999, true, null, "1"]'.encode())[1:]
    assert value == [1, -2, 1.0, 1000.0, 2**63 - 1, float(2**70), None, True, None, "1"]
    assert [type(item).__name__ for item in value[:6]] == ["int", "int", "float", "float", "int", "float"]


def test_what_can_be_read_at_once_is_read_as_ever() -> None:
    """Over random values: the slow way reads the same as the fast one."""
    chance = random.Random(7)

    def made(depth: int) -> object:
        kind = chance.randrange(7 if depth else 5)
        match kind:
            case 0:
                return chance.randrange(-(2**62), 2**62)
            case 1:
                return chance.random()
            case 2:
                return "".join(chance.choice('ab"\\[]{}ä🙂\n\x00') for _ in range(chance.randrange(9)))
            case 3 | 4:
                return chance.choice([True, False, None])
            case 5:
                return [made(depth - 1) for _ in range(chance.randrange(4))]
        return {f"k{n}[": made(depth - 1) for n in range(chance.randrange(4))}

    poison = b"[" * 3000 + b"]" * 3000
    for _ in range(300):
        value = made(6)
        assert decoded(b"[" + poison + b"," + orjson.dumps(value) + b"]")[1] == value


@pytest.mark.parametrize("text", [b"", b"no json", b'{"a": ', b"[" * 5000, b'"' + b"x" * 100, b"]" * 2000, b"\xff"])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded(text)
