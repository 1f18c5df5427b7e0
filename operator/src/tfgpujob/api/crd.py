"""The CustomResourceDefinition, generated from the models. `make crds` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfgpujob import names
from tfgpujob.api.rules import JOB_RULES, NAME_RULES
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel
from tfgpujob.api.rules.transition import TRANSITIONS
from tfgpujob.api.spec import JobSpec
from tfgpujob.api.status import JobStatus
from tfgpujob.api.structural import Schema, structural
from tfgpujob.api.template import PodTemplate
from tfgpujob.names import Role

ABOUT = "A distributed TensorFlow training job on GPUs: pods, their addresses, TF_CONFIG, restarts and clean-up."


_SCALE = {
    "specReplicasPath": ".spec.replicaSpecs.worker.replicas",
    "statusReplicasPath": ".status.replicaStatuses.worker.active",
    "labelSelectorPath": ".status.selector",
}
"""For `kubectl scale`."""
_ADDED = (
    "runPolicy.voluntaryDisruption",
    "runPolicy.recovery",
    "runPolicy.schedulingPolicy.gang",
    *(f"replicaSpecs.{role}.persistentVolumeClaimRetentionPolicy.whenDeleted" for role in Role),
)
"""Fields below spec that the last release did not have, and that have a default. The operator applies it, not the API
server, which would write it into every job: after a rollback the older operator would refuse the field."""


def build(*, cel: bool) -> dict[str, Any]:
    """The CRD. Without CEL it suits API servers before 1.28, whose clients reject `fieldPath`."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, "scale": _SCALE},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": root_schema(cel=cel)},
                }
            ],
        },
    }


def root_schema(*, cel: bool) -> Schema:
    """The schema of a whole TFGPUJob."""
    root: Schema = {
        "description": ABOUT,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Always {names.API_VERSION}.", "type": "string"},
            "kind": {"description": f"Always {names.KIND}.", "type": "string"},
            "metadata": {"type": "object"},
            "spec": _without_added_defaults(spec_schema()),
            "status": structural(JobStatus, defaults=False),
        },
    }
    if cel:
        for entry in cel_entries():
            _add(root, entry)
    else:
        limits = {"type": "string", "maxLength": names.MAX_NAME_LENGTH, "pattern": names.NAME_PATTERN}
        root["properties"]["metadata"]["properties"] = {"name": limits}
    return root


def spec_schema() -> Schema:
    """The models keep a template as it was given; the schema has the fields that rules read."""
    spec = structural(JobSpec)
    for replica in spec["properties"]["replicaSpecs"]["properties"].values():
        replica["properties"]["template"] = {
            **structural(PodTemplate),
            "description": replica["properties"]["template"]["description"],
        }
    return spec


def _without_added_defaults(spec: Schema) -> Schema:
    for path in _ADDED:
        node = spec
        for key in path.split("."):
            node = node["properties"][key]
        del node["default"]
    return spec


def cel_entries() -> Iterator[Cel]:
    """Every CEL rule; rules about a role once for each role."""
    for entries in (*(rule.cel for rule in NAME_RULES), *(rule.cel for rule in JOB_RULES)):
        for entry in entries:
            yield from _for_roles(entry)
    yield from TRANSITIONS


def _for_roles(entry: Cel) -> Iterator[Cel]:
    if EVERY_ROLE not in entry.at + entry.rule:
        yield entry
        return
    for role in Role:
        yield Cel(
            at=entry.at.replace(EVERY_ROLE, role),
            rule=entry.rule.replace(EVERY_ROLE, role),
            field=entry.field.replace(EVERY_ROLE, role),
            message=entry.message.replace(EVERY_ROLE, role),
        )


def _add(root: Schema, entry: Cel) -> None:
    node = root
    for key in filter(None, entry.at.split(".")):
        node = node["properties"][key]
    field = {"fieldPath": f".{entry.field}"} if entry.field else {}
    validations = node.setdefault("x-kubernetes-validations", [])
    validations.append({"rule": entry.rule, "message": entry.message, **field})


def _columns() -> list[dict[str, Any]]:
    finished = '.status.conditions[?(@.type=="Finished")].reason'
    return [
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {
            "name": "Ready",
            "type": "string",
            "jsonPath": ".status.ready",
            "description": "Required replicas that are ready or have succeeded, of all required.",
        },
        {"name": "Strategy", "type": "string", "jsonPath": ".spec.strategy"},
        {
            "name": "Percent",
            "type": "integer",
            "jsonPath": ".status.progress.percent",
            "description": "Share of the training steps that are done, as reported by the bundled trainer.",
        },
        {
            "name": "Restarts",
            "type": "integer",
            "jsonPath": ".status.restarts",
            "description": "Failures that counted against runPolicy.backoffLimit.",
        },
        {
            "name": "Accepted",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Accepted")].status',
            "description": "False: the job waits for an edit; the condition Accepted says of which field.",
        },
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Attempt", "type": "integer", "priority": 1, "jsonPath": ".status.attempt"},
        {"name": "Disruptions", "type": "integer", "priority": 1, "jsonPath": ".status.disruptions"},
        {"name": "Finished", "type": "string", "priority": 1, "jsonPath": finished},
    ]
