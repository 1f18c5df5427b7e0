"""YAML as kubectl reads it, and written so that every reader of YAML 1.1 or 1.2 takes it for the same.

kubectl's reader knows the booleans and octal numbers of YAML 1.1, takes `1e-4` for a number and `12:30` or `2024-01-01`
for a text, and makes a text of every key. Numbers then pass through JSON, in which `1.0` is `1`. tests/cases/yaml holds
what a real kubectl made of some 400 scalars.
"""

from __future__ import annotations

import math
import re
import struct
from base64 import b64decode
from typing import Any, Final

import yaml

_STR: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
_TAGS: Final = {type(None): "null", bool: "bool", int: "int", float: "float"}
_OTHER_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in _TAGS.values())
_CONSTANTS: Final[dict[str, bool | float | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER: Final = re.compile(
    r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]{0,19}))", re.ASCII
)
"""Decimal numbers of up to 64 bits: Python refuses to read thousands of digits."""
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)
"""Only compare integers with it: for other values Python would iterate over the range."""
_LIMIT: Final = 2.0**63
_UINT64: Final = range(2**64)
_FIXED: Final = range(-4, 6)
"""Exponents for which Go writes a number without one."""
_LOOKS_LIKE_MORE: Final = re.compile(
    r"[-+]?\.?[0-9][-+.:,_0-9a-fA-FxXoObBtTzZ ]*|[yYnN]|yes|no|on|off|true|false|null|~|=|<<|[-+]?\.(inf|nan)",
    re.ASCII | re.IGNORECASE,
)
"""What some YAML reader takes for a number, a time, a boolean or null."""


def plain(text: str) -> str | float | bool | None:
    """The value that kubectl reads from a scalar without quotes."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    integer = None if text[0] == "." else _integer(digits)
    number = _float(digits) if integer is None else integer
    return text if number is None else number


def _integer(text: str) -> int | None:
    if (match := _INTEGER.fullmatch(text)) is None:
        return None
    sign, *parts = match.groups()
    value = next(int(part, base) for part, base in zip(parts, (16, 2, 8, 10), strict=True) if part is not None)
    value = -value if sign == "-" else value
    return value if value in _INT64 or (not sign and value in _UINT64) else None


def _float(text: str) -> float | None:
    value = float(text) if _FLOAT.fullmatch(text) else math.inf
    return None if math.isinf(value) else value


def _through_json(value: Any) -> Any:
    """The value after Go has written and read it as JSON."""
    if isinstance(value, float) and value.is_integer() and -_LIMIT < value < _LIMIT:
        return int(value)
    return float(value) if isinstance(value, int) and value not in _INT64 else value


def key_of(node: yaml.Node) -> str | None:
    """The string that kubectl makes of a key; None for one that it refuses."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    if node.tag not in _OTHER_TAGS:
        return str(node.value)
    key = plain(node.value)
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, float):
        return _short(key) if math.isfinite(key) else {math.inf: ".inf", -math.inf: "-.inf"}.get(key, ".nan")
    return str(key) if isinstance(key, str) or (isinstance(key, int) and key in _INT64) else None


def _short(value: float) -> str:
    """The fewest digits that identify it among 32-bit floats."""
    shown = (f"{value:.{digits}e}" for digits in range(17))
    text = next(text for text in shown if _narrow(float(text)) == _narrow(value))
    digits, _, exponent = text.partition("e")
    if int(exponent) not in _FIXED:
        return text
    return f"{float(text):.{max(0, len(digits.lstrip('-').replace('.', '')) - 1 - int(exponent))}f}"


def _narrow(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


class Loader(yaml.SafeLoader):
    """Reads as kubectl does. What it refuses is a yaml.MarkedYAMLError."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """The tag of a node."""
        if kind is not yaml.ScalarNode or not implicit[0]:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call] # theirs
        if value == "<<":
            return _MERGE
        return f"tag:yaml.org,2002:{_TAGS.get(type(plain(value)), 'str')}"

    def scalar(self, node: yaml.ScalarNode) -> Any:
        """A number, boolean or null. An explicit tag must be that of the value; !!float 5 is 5."""
        found = plain(node.value)
        kind, wanted = _TAGS.get(type(found), "str"), node.tag.rpartition(":")[2]
        if kind != wanted and (kind, wanted) != ("int", "float"):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value!r:.60} is no !!{wanted}", node.start_mark)
        value = _through_json(found)
        if isinstance(value, float) and not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no number in JSON", node.start_mark)
        return value

    def text(self, node: yaml.ScalarNode) -> str:
        """What other readers take for a time, or for another type than a string."""
        return str(node.value)

    def binary(self, node: yaml.ScalarNode) -> str:
        """The text that is encoded."""
        try:
            return b64decode(node.value, validate=True).decode()
        except ValueError:
            problem = "!!binary is no text in base64"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def scan_to_next_token(self) -> None:
        """Takes tabs for spaces, but in an indentation."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        """With a text for each key. A merged key replaces those before it, and is replaced by those behind it."""
        made: dict[str, Any] = {}
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "is no mapping", node.start_mark)
        self._refuse_repeated([key for key, _ in node.value])
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                several = isinstance(value_node, yaml.SequenceNode)
                for merged in reversed(value_node.value) if several else [value_node]:
                    made.update(self.construct_mapping(merged, deep=True))
                continue
            if (key := key_of(key_node)) is None:
                problem = "a key is no text: put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            made[key] = self.construct_object(value_node, deep=deep)
        return made

    def _refuse_repeated(self, keys: list[yaml.Node]) -> None:
        """kubectl silently takes the last one. Merged keys may be replaced."""
        seen = set[str]()
        for node in keys:
            if node.tag != _MERGE and (key := key_of(node)) is not None:
                if key in seen:
                    problem = f"{key} is there a second time: keep one of them"
                    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
                seen.add(key)


for _tag in _TAGS.values():
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", Loader.scalar)
for _tag in (_MERGE, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"):
    Loader.add_constructor(_tag, Loader.text)
Loader.add_constructor("tag:yaml.org,2002:binary", Loader.binary)


def load(text: str) -> Any:
    """The one document. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=Loader)  # noqa: S506 (it makes plain values only)


class Dumper(yaml.SafeDumper):
    """Quotes each string that any YAML reader could take for another type, and writes multi-line strings as blocks."""

    def text(self, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else "'" if _LOOKS_LIKE_MORE.fullmatch(value) else None
        return self.represent_scalar(_STR, value, style=style)


Dumper.add_representer(str, Dumper.text)
