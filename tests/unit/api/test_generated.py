"""What is generated from the models stands in the repository as it is, and fits Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tfgpujob.api.crd import build, root_schema
from tfgpujob.api.structural import Schema


@pytest.mark.parametrize("cel", [True, False])
def test_small_enough_for_the_annotation_of_kubectl_apply(cel: bool) -> None:
    assert len(json.dumps(build(cel=cel))) < 256 * 1024


def nodes(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


NODES = dict(nodes(root_schema(cel=True), ""))


def test_every_field_is_described() -> None:
    bare = {path for path, node in NODES.items() if not path.endswith("[]") and "description" not in node}
    assert bare == {".metadata"}, "Kubernetes describes metadata itself; the rest is ours"


def test_there_are_no_floats_but_what_the_trainer_computes_with() -> None:
    numbers = {path for path, node in NODES.items() if node.get("type") == "number"}
    assert numbers == {".spec.trainer.classWeights[]", ".spec.trainer.best.minDelta"}


def test_integers_say_their_size() -> None:
    assert all("format" in node for node in NODES.values() if node.get("type") == "integer")


def test_a_closed_object_lists_its_fields_and_an_open_one_says_so() -> None:
    for path, node in NODES.items():
        if node.get("type") == "object" and path != ".metadata":
            assert {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(node), path


def test_no_object_has_both_properties_and_additional_properties() -> None:
    assert not any("properties" in node and "additionalProperties" in node for node in NODES.values())


def test_what_is_the_key_of_a_list_is_required() -> None:
    keyed = {path: node for path, node in NODES.items() if node.get("x-kubernetes-list-type") == "map"}
    assert set(keyed) == {".status.conditions", ".status.restartRecords"}
    for path, node in keyed.items():
        assert set(node["x-kubernetes-list-map-keys"]) <= set(node["items"]["required"]), path


def test_nothing_in_status_has_a_default() -> None:
    assert not any("default" in node for path, node in NODES.items() if path.startswith(".status"))


def test_columns() -> None:
    version: dict[str, Any] = build(cel=True)["spec"]["versions"][0]
    columns = {column["name"]: column.get("priority", 0) for column in version["additionalPrinterColumns"]}
    assert [name for name, priority in columns.items() if priority == 0] == [
        "Phase",
        "Ready",
        "Strategy",
        "Percent",
        "Restarts",
        "Accepted",
        "Age",
    ]
    assert version["subresources"]["status"] == {}


def test_scale_sets_and_counts_the_workers() -> None:
    version: dict[str, Any] = build(cel=True)["spec"]["versions"][0]
    scale, schema = version["subresources"]["scale"], version["schema"]["openAPIV3Schema"]
    assert property_at(schema, scale["specReplicasPath"])["type"] == "integer"
    assert property_at(schema, scale["labelSelectorPath"])["type"] == "string"
    assert property_at(schema, scale["statusReplicasPath"])["type"] == "integer"


def property_at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.strip(".").split("."):
        schema = schema["properties"][name]
    return schema
