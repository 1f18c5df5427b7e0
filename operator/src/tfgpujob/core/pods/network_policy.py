"""The job's NetworkPolicy: which pods may reach its own. TensorFlow's gRPC asks nobody for a password."""

from __future__ import annotations

from typing import Final

from tfgpujob import names
from tfgpujob.core.observed.metadata import dependent_metadata
from tfgpujob.core.observed.snapshot import Config, Object

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label that each namespace has from Kubernetes 1.21 on."""


def isolated(job: Object, config: Config) -> bool:
    """Whether the job gets a NetworkPolicy, without which none of its pods is created."""
    return not config.network_policy_namespaces.isdisjoint({"*", job["metadata"]["namespace"]})


def build_network_policy(job: Object, config: Config) -> Object:
    """Ingress only: every port from the job's own pods, /progress from the operator's. Policies add up, so whoever
    needs more, such as a scraper, allows it in a policy of his own.
    """
    own = {"podSelector": {"matchLabels": {names.LABEL_JOB_NAME: job["metadata"]["name"]}}}
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: config.operator_namespace}},
        "podSelector": {"matchLabels": dict(config.operator_labels)},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": dependent_metadata(job),
        "spec": {
            **own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own]},
                {"from": [operator], "ports": [{"port": names.PROGRESS_PORT, "protocol": "TCP"}]},
            ],
        },
    }
