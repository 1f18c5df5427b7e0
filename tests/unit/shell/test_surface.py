"""What the process shows: health, figures, log lines; and what it asks of kopf."""

import json
import logging
import ssl

import aiohttp
from tests.machine import free_port

from tfgpujob.kube.interface import Credentials
from tfgpujob.shell import log_format
from tfgpujob.shell.health import serving
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.watch import Watch, _settings


async def test_health_readiness_and_metrics_are_served() -> None:
    metrics, ready, port = Metrics(), [False], free_port()
    problems: list[str] = []
    troubled: list[str] = []
    metrics.reconciled("ok", 0.004)
    metrics.reconciled("error", 40.0)
    metrics.gauge("tfgpu_queue_depth", "Jobs that wait.", lambda: 3)

    async def get(path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async with serving(port, lambda: list(problems), lambda: ready[0], lambda: list(troubled), metrics):
        assert await get("/healthz") == (200, "ok")
        assert (await get("/readyz"))[0] == 503
        problems.append("resync has ended")
        ready[0] = True
        assert await get("/healthz") == (500, "resync has ended")
        assert await get("/readyz") == (200, "ok")
        troubled.append("unreadable: TFGPUJob a/b: spec: is too deep")
        assert await get("/readyz") == (200, "ok\nunreadable: TFGPUJob a/b: spec: is too deep")
        _, text = await get("/metrics")
    lines = text.splitlines()
    assert 'tfgpu_reconciles_total{result="ok"} 1.0' in lines
    assert 'tfgpu_reconcile_seconds_bucket{le="0.005"} 1.0' in lines
    assert 'tfgpu_reconcile_seconds_bucket{le="+Inf"} 2.0' in lines
    assert "tfgpu_reconcile_seconds_count 2.0" in lines
    assert "tfgpu_queue_depth 3.0" in lines
    assert text.endswith("\n")


SERIES = {
    "tfgpu_reconciles_total": ("counter", "Reconciliations of a job, by result.", 3),
    "tfgpu_watch_events_total": ("counter", "Watch events received, by kind.", 2),
    "tfgpu_progress_asked_total": ("counter", "GET /progress requests to pods, by result.", 3),
    "tfgpu_resizes_asked_total": ("counter", "PUT /workers requests to leaders of gangs, by result.", 3),
    "tfgpu_reconcile_seconds": ("histogram", "Duration of a reconciliation in seconds, its writes included.", 16),
    "tfgpu_queue_depth": ("gauge", "Jobs that wait.", 1),
    "tfgpu_jobs_seconds": ("gauge", "Where the time went.", 2),
    "process_cpu_seconds_total": ("counter", "CPU time in seconds, user and system.", 1),
    "process_max_resident_memory_bytes": ("gauge", "Peak resident memory in bytes.", 1),
}
"""Dashboards and alerts hang on these: name, type, help, and how many series."""


def test_the_series_are_these_and_none_for_a_job() -> None:
    metrics = Metrics()
    metrics.gauge("tfgpu_queue_depth", "Jobs that wait.", lambda: 3)
    metrics.by_part("tfgpu_jobs_seconds", "Where the time went.", lambda: {"useful": 5, "lost": 1})
    for number in range(100):
        metrics.reconciled(("ok", "stale", "error")[number % 3], number / 10)
        metrics.polled(("ok", "unreachable", "refused")[number % 3])
        metrics.asked_to_resize(("ok", "unreachable", "refused")[number % 3])
        metrics.watched(("Pod", "TFGPUJob")[number % 2])
    lines = metrics.text().splitlines()
    helps = {line.split(" ", 3)[2]: line.split(" ", 3)[3] for line in lines if line.startswith("# HELP")}
    types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    samples = [line for line in lines if not line.startswith("#")]
    owners = [max((name for name in SERIES if line.startswith(name)), key=len) for line in samples]
    assert {name: (types[name], helps[name], owners.count(name)) for name in types} == SERIES


def test_log_lines_carry_their_fields() -> None:
    record = logging.makeLogRecord(
        {"levelname": "INFO", "msg": "reconciled", "job": "ns/train", "wrote": {"created": 5}}
    )
    line = json.loads(log_format.JsonFormatter().format(record))
    assert (line["message"], line["job"], line["wrote"]) == ("reconciled", "ns/train", {"created": 5})
    assert log_format.TextFormatter().format(record).endswith("INFO reconciled job=ns/train wrote={'created': 5}")
    record.job = "ns/train\n2026 INFO all is well\x1b[2J"
    assert log_format.TextFormatter().format(record).count("\n") == 0
    assert "\\x0a2026 INFO all is well\\x1b[2J" in log_format.TextFormatter().format(record)


async def _no_list(_: str | None) -> str:
    return "1"


def test_kopf_is_asked_for_nothing_that_writes() -> None:
    settings = _settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    delays = iter(settings.networking.error_backoffs)  # type: ignore[arg-type]
    assert [next(delays) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]

    async def nobody() -> Credentials:
        return Credentials(server="https://example", tls=ssl.create_default_context())

    registry = Watch(lambda *_: None, nobody, _no_list, namespaces=())._registry()
    assert len(registry._watching.get_all_handlers()) == 1
    assert not list(registry._changing.get_all_handlers())
    assert not list(registry._spawning.get_all_handlers())
    assert not list(registry._indexing.get_all_handlers())
