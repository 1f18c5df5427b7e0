"""What a stranger may put into an object so that others can't be read: by name, as JSON text.

`body` is a job's spec in which one of them stands where a template keeps what it does not know.
"""

from __future__ import annotations

from typing import Any, Final

POISONS: Final[dict[str, str]] = {
    "arrays-1030": "[" * 1030 + "]" * 1030,
    "arrays-10000": "[" * 9_900 + "]" * 9_900,
    "objects-10000": '{"a":' * 9_900 + "1" + "}" * 9_900,
    "objects-300": '{"a":' * 300 + "1" + "}" * 300,
    "objects-900": '{"a":' * 900 + "1" + "}" * 900,
    "many-deep": "[" + ",".join(["[" * 5000 + "]" * 5000] * 20) + "]",
    "text-1-mib": '"' + "x" * (1 << 20) + '"',
    "escapes-1-mib": '"' + '\\"' * (1 << 19) + '"',
    "containers-100000": "[" + ",".join(["{}"] * 100_000) + "]",
    "keys-100000": "{" + ",".join(f'"k{n}":0' for n in range(100_000)) + "}",
}
"""Each makes its own job unreadable."""

ODD: Final[dict[str, str]] = {
    "integer-400-digits": "9" * 400,
    "integer-5000-digits": "-" + "9" * 5000,
    "float-beyond": "1e999",
    "no-utf-8": '"\xff\xfe"',
    "half-a-surrogate-pair": '"\\ud800"',
    "zero-byte": '"\\u0000"',
    "not-a-number": "NaN",
    "brackets-in-text": '"' + "[{" * 50_000 + '"',
}
"""Only the last is sent by API servers; a proxy might send the others. All but the last must be readable."""


def spec(placeholder: Any) -> dict[str, Any]:
    """The spec of a valid job, except for what is in its template."""
    affinity = {"unknown": placeholder}
    return {
        "strategy": "OneDevice",
        "image": "example.com/train:1",
        "replicaSpecs": {"worker": {"gpus": 0, "template": {"spec": {"affinity": affinity}}}},
    }
