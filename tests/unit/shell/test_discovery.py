"""Which gang schedulers, and which Kueue, the operator finds when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.live import live_cluster
from tests.harness.vtime import run
from tests.unit.shell.operating import make_good, operating, runs, until

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.discovery import with_devices, with_gangs, with_kueue
from tfgpujob.shell.settings import Settings, from_environment

IMAGES = {"OPERATOR_IMAGE": "operator:1", "TRAINER_IMAGE": "trainer:1"}


def found(backends: str, serves: Callable[[Kind], bool]) -> tuple[list[tuple[str, Kind]], list[Kind]]:
    asked: list[Kind] = []

    async def ask(kind: Kind) -> bool:
        asked.append(kind)
        return serves(kind)

    settings = run(with_gangs(from_environment({**IMAGES, "GANG_BACKENDS": backends}), ask))
    assert settings.config.gangs is not None
    return list(settings.config.gangs), asked


def test_nothing_is_asked_where_none_is_named() -> None:
    assert found("", lambda _: True) == ([], [])


def test_the_newest_version_that_is_served_and_none_that_is_not() -> None:
    served = {Kind.NATIVE_V1ALPHA3_POD_GROUP, Kind.NATIVE_V1ALPHA2_POD_GROUP, Kind.VOLCANO_POD_GROUP}
    gangs, asked = found("SchedulerPlugins,Native,Volcano", lambda kind: kind in served)
    assert gangs == [("Native", Kind.NATIVE_V1ALPHA3_POD_GROUP), ("Volcano", Kind.VOLCANO_POD_GROUP)]
    assert Kind.NATIVE_V1ALPHA2_POD_GROUP not in asked


@pytest.mark.parametrize(
    ("enabled", "served", "found"),
    [
        ("true", {Kind.WORKLOAD_V1BETA1, Kind.WORKLOAD_V1BETA2}, Kind.WORKLOAD_V1BETA2),
        ("true", {Kind.WORKLOAD_V1BETA1}, Kind.WORKLOAD_V1BETA1),
        ("true", set[Kind](), None),
        ("false", {Kind.WORKLOAD_V1BETA1}, None),
    ],
)
def test_kueue_in_the_newest_version_that_is_served(enabled: str, served: set[Kind], found: Kind | None) -> None:
    async def serves(kind: Kind) -> bool:
        return kind in served

    settings = run(with_kueue(from_environment({**IMAGES, "KUEUE_ENABLED": enabled}), serves))
    assert (settings.config.kueue_enabled, settings.config.kueue) == (enabled == "true", found)


def test_an_api_server_that_does_not_answer_is_asked_again() -> None:
    answers = iter([503, 0, None])

    def serves(kind: Kind) -> bool:
        code = next(answers)
        if code is not None:
            raise ApiError(code, "ServiceUnavailable", "later")
        return True

    assert found("Volcano", serves)[0] == [("Volcano", Kind.VOLCANO_POD_GROUP)]


@pytest.mark.parametrize(
    ("served", "kind"),
    [
        ({Kind.DEVICE_TEMPLATE, Kind.DEVICE_TEMPLATE_V1BETA2}, Kind.DEVICE_TEMPLATE),
        ({Kind.DEVICE_TEMPLATE_V1BETA2}, Kind.DEVICE_TEMPLATE_V1BETA2),
        (set[Kind](), None),
    ],
)
def test_devices_are_claimed_by_the_newest_version_that_is_served(served: set[Kind], kind: Kind | None) -> None:
    async def ask(asked: Kind) -> bool:
        return asked in served

    assert run(with_devices(from_environment(IMAGES), ask)).config.device_template is kind


def test_who_may_not_ask_what_is_served_does_without_devices() -> None:
    async def ask(asked: Kind) -> bool:
        raise ApiError(403, "Forbidden", "no system:discovery")

    async def soon() -> Settings:
        async with asyncio.timeout(60):
            return await with_devices(from_environment(IMAGES), ask)

    assert run(soon()).config.device_template is None


async def test_what_is_found_schedules_the_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with live_cluster(tmp_path, operator=False) as cluster:
        make_good(cluster, "good")
        async with operating(monkeypatch, cluster, gang_backends=("Native", "Volcano")):
            await until(lambda: runs(cluster, "good"), "it runs, by a pod group")
        assert cluster.server.objects["PodGroup", "default", "good"]["apiVersion"] == "scheduling.volcano.sh/v1beta1"
