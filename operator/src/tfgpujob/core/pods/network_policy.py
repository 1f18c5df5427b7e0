"""The job's NetworkPolicy: which pods may reach its own. TensorFlow's gRPC has no authentication."""

from __future__ import annotations

from typing import Final

from tfgpujob import names
from tfgpujob.core.observed.metadata import dependent_metadata
from tfgpujob.core.observed.snapshot import Config, Object
from tfgpujob_contract.pod import PROGRESS_PORT

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label that each namespace has from Kubernetes 1.21 on."""


def isolated(job: Object, config: Config) -> bool:
    """True if the job gets a NetworkPolicy, which is created before its pods."""
    return not config.network_policy_namespaces.isdisjoint({"*", job["metadata"]["namespace"]})


def build_network_policy(job: Object, config: Config) -> Object:
    """Ingress only: every port from the job's own pods, /progress from the operator's. Policies are additive, so a user
    who needs more, such as a scraper, adds another one.
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
                {"from": [operator], "ports": [{"port": PROGRESS_PORT, "protocol": "TCP"}]},
            ],
        },
    }
