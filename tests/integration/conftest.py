"""The cluster, the operator on it, and a namespace for each test.

IT_OPERATOR=process runs the operator as a process of this machine, with the rights of the chart's ServiceAccount,
which is quicker to try a change with. What CI runs is the chart with the image that the Dockerfile builds.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration import parts
from tests.integration.audit import AuditLog
from tests.integration.eventually import eventually
from tests.integration.installed import USER, Installation
from tests.integration.kube import Kube
from tests.integration.session import Session
from tests.integration.target import Target
from tests.integration.tool import Tool
from tests.integration.workspace import Workspace

HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Before the selection by markers, and after it."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker(pytest.mark.cluster)
        # The first test pays for a cluster that has to be built, which has deadlines of its own.
        item.add_marker(pytest.mark.timeout(1800, func_only=True))
    yield
    parts.arrange(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> parts.Units | None:
    return parts.Units(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    parts.took(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    parts.record(session.config)


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return Session.of_this_process(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def target(session: Session) -> Target:
    return session.target()


@pytest.fixture(scope="session")
def kube(target: Target) -> Kube:
    return Kube(target.kubeconfig)


@pytest.fixture(scope="session")
def operator(
    kube: Kube, target: Target, session: Session, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    installation = Installation.on(kube, target, tmp_path_factory.mktemp("operator"))
    with session.operator(installation, target):
        yield installation


@pytest.fixture(scope="session")
def whole_audit(target: Target, operator: Installation) -> AuditLog:
    """The operator's requests. Skips where there is no audit log to read."""
    if target.audit_log is None:
        pytest.skip("this cluster's audit log can't be read from here")
    return AuditLog(target.audit_log, USER)


@pytest.fixture
def audit(whole_audit: AuditLog) -> AuditLog:
    return whole_audit


@contextmanager
def new_workspace(kube: Kube, target: Target, operator: Installation, namespace: str = "") -> Iterator[Workspace]:
    """A namespace, of this name if one is given. Deleted in the background at the end."""
    namespace = namespace or f"it-{secrets.token_hex(4)}"
    kube.create("Namespace", "", {"metadata": {"name": namespace}})
    # Until then, no pod is admitted to the namespace.
    eventually(lambda: kube.find("ServiceAccount", namespace, "default"), "the namespace has its ServiceAccount")
    try:
        yield Workspace(kube, namespace, target.operator_image, operator.log)
    finally:
        kube.delete("Namespace", "", namespace)


@pytest.fixture
def workspace(kube: Kube, target: Target, operator: Installation) -> Iterator[Workspace]:
    with new_workspace(kube, target, operator) as made:
        yield made


@pytest.fixture
def tool(workspace: Workspace, tmp_path: Path) -> Tool:
    """`tfgpu` in the test's namespace."""
    return Tool(workspace, tmp_path)
