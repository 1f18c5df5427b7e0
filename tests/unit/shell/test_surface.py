"""What the process shows: health, figures, log lines; and what it asks of kopf."""

import json
import logging
import socket

import aiohttp

from tfgpujob.kube.interface import Credentials
from tfgpujob.shell import log_format
from tfgpujob.shell.health import serving
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.watch import Watch, _settings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_health_readiness_and_metrics_are_served() -> None:
    metrics, ready, port = Metrics(), [False], free_port()
    problems: list[str] = []
    metrics.reconciled("ok", 0.004)
    metrics.reconciled("error", 40.0)
    metrics.gauge("tfgpu_queue_depth", "Jobs that wait.", lambda: 3)

    async def get(path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async with serving(port, lambda: list(problems), lambda: ready[0], metrics):
        assert await get("/healthz") == (200, "ok")
        assert (await get("/readyz"))[0] == 503
        problems.append("resync has ended")
        ready[0] = True
        assert await get("/healthz") == (500, "resync has ended")
        assert await get("/readyz") == (200, "ok")
        _, text = await get("/metrics")
    lines = text.splitlines()
    assert 'tfgpu_reconciles_total{result="ok"} 1' in lines
    assert 'tfgpu_reconcile_seconds_bucket{le="0.005"} 1' in lines
    assert 'tfgpu_reconcile_seconds_bucket{le="+Inf"} 2' in lines
    assert "tfgpu_reconcile_seconds_count 2" in lines
    assert "tfgpu_queue_depth 3" in lines
    assert text.endswith("\n")


def test_log_lines_carry_their_fields() -> None:
    record = logging.makeLogRecord(
        {"levelname": "INFO", "msg": "reconciled", "job": "ns/train", "wrote": {"created": 5}}
    )
    line = json.loads(log_format.JsonFormatter().format(record))
    assert (line["message"], line["job"], line["wrote"]) == ("reconciled", "ns/train", {"created": 5})
    assert log_format.TextFormatter().format(record).endswith("INFO reconciled job=ns/train wrote={'created': 5}")


def test_kopf_is_asked_for_nothing_that_writes() -> None:
    settings = _settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    delays = iter(settings.networking.error_backoffs)  # type: ignore[arg-type]
    assert [next(delays) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]

    async def nobody() -> Credentials:
        return Credentials(server="https://example")

    registry = Watch(lambda *_: None, nobody, namespaces=())._registry()
    assert len(registry._watching.get_all_handlers()) == 1
    assert not list(registry._changing.get_all_handlers())
    assert not list(registry._spawning.get_all_handlers())
    assert not list(registry._indexing.get_all_handlers())
