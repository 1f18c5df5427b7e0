"""One dialect of YAML: what kubectl reads is what tfgpu reads, and what tfgpu writes is the same to every reader.

tests/cases/yaml/kubectl.json holds what a real kubectl made of each scalar (`kubectl label --local`). Where a kubectl
is here, it is asked again, in both directions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfgpujob.cli.output import Format, data
from tfgpujob.kubectl_yaml import Loader, load

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "cases/yaml/kubectl.json").read_text())
SCALARS: dict[str, Any] = dict(CASES["read"])
TEXTS = [
    *SCALARS, *CASES["refused"], "two\nlines", "\n begins", "ends\n\n", "\ttab", "  spaces  ", "a" * 200, "\x07",
    "\u2028", "1.e5", "+.5", "1,000", "0x1.8p1", "é", "'", '"', "---", "...", "- - a", "a\\b", "? b", "null ", " true",
    "!!int",
]  # fmt: skip
"""Each is a text, whatever it looks like."""
LAYOUT = "b: &b {a: 1, b: 2}\nc: &c {b: 3, d: 4}\nv:\t{a: 9, <<: [*b, *c], d: 5}\t# end\nw:\t{\n\t<<: *b,\t<<: *c}\n"
"""Merges before, behind and beside a key of its own, and tabs where kubectl takes them for spaces."""
JOB = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "metadata": {"name": "a"}}


def with_value(scalar: str) -> str:
    return f"v: {scalar}\n"


def same(ours: Any, theirs: Any) -> bool:
    """Types too. A number beyond 64 bits is a float, of which Go writes the digits out."""
    if isinstance(ours, float) and isinstance(theirs, int):
        return abs(ours) >= 2**63 and ours == float(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def test_each_scalar_is_what_kubectl_takes_it_for() -> None:
    assert len(SCALARS) + len(CASES["refused"]) >= 400
    read = {scalar: load(with_value(scalar))["v"] for scalar in SCALARS}
    assert {scalar: value for scalar, value in read.items() if not same(value, SCALARS[scalar])} == {}


@pytest.mark.parametrize("scalar", CASES["refused"])
def test_what_kubectl_refuses_is_refused(scalar: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load(with_value(scalar))


def test_a_number_of_thousands_of_digits_is_text_as_kubectl_reads_it() -> None:
    digits = "9" * 5000
    assert load(with_value(digits))["v"] == digits


@pytest.mark.parametrize("keys", ["{1: a, 0x1: b}", "{true: a, y: b}", "{1: a, '1': b}"])
def test_two_keys_that_become_the_same_text_are_refused(keys: str) -> None:
    with pytest.raises(yaml.YAMLError, match="is there a second time"):
        load(keys)


def test_what_is_merged_in_may_be_replaced() -> None:
    text = "base: &base {a: 1, b: 2}\nv: {<<: *base, b: 3}\n"
    assert load(text)["v"] == {"a": 1, "b": 3}
    read = load(LAYOUT)
    assert (read["v"], read["w"]) == ({"a": 1, "b": 2, "d": 5}, {"a": 1, "b": 3, "d": 4})
    with pytest.raises(yaml.YAMLError, match="cannot start any token"):
        load("v:\n\ta: 1")
    with pytest.raises(yaml.YAMLError, match="b is there a second time"):
        load("v: {a: 1, b: 2, b: 3}")


def documents(texts: list[str]) -> tuple[dict[str, Any], str]:
    """An object that has each as a value, and each as a key; and as tfgpu writes it."""
    obj = {**JOB, "spec": {"values": texts, "keys": dict.fromkeys(texts, 1)}}
    return obj, data(obj, Format.YAML)


def test_what_is_written_is_read_as_it_was_by_readers_of_every_dialect() -> None:
    obj, text = documents(TEXTS)
    for loader in (Loader, yaml.SafeLoader, yaml.CSafeLoader):
        assert yaml.load(text, Loader=loader) == obj


def test_what_no_reader_takes_for_something_else_has_no_quotes() -> None:
    bare = ["worker", "1Gi", "5s", "a/b:1", "MultiWorkerMirrored", "epoch 5", "v1.2"]
    assert data(bare, Format.YAML) == "\n".join(f"- {text}" for text in bare)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_a_real_kubectl_reads_the_same_in_both_directions(tmp_path: Path) -> None:
    def kubectl(text: str) -> dict[str, Any]:
        command = ["kubectl", "label", "--local", "--dry-run=client", "--filename=-", "--output=json", "seen=yes"]
        environment = {"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, env=environment)
        spec: dict[str, Any] = json.loads(done.stdout)["spec"]
        return spec

    head = data(JOB, Format.YAML)
    scalars = [scalar for scalar in SCALARS if not scalar.startswith(("|", "&"))]
    text = f"{head}\nspec:\n" + "".join(f"  k{i}: {scalar}\n" for i, scalar in enumerate(scalars))
    theirs, ours = kubectl(text), load(text)["spec"]
    assert theirs.keys() == ours.keys()
    assert [scalars[int(key[1:])] for key in theirs if not same(ours[key], theirs[key])] == []
    obj, written = documents(TEXTS)
    assert kubectl(written) == obj["spec"]
    assert kubectl(f"{head}\nspec:\n  {LAYOUT.replace(chr(10), chr(10) + '  ')}") == load(LAYOUT)
