"""Series of single jobs: which, how many, for how long, and what Prometheus' own tool says of them."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from localcluster import apt
from tests.machine import PATIENCE, free_port
from tests.unit.chart.choices import ALL_MONITORING
from tests.unit.chart.rendered import of, render
from tests.unit.shell.job_series import NOW, store_with_a_job
from tests.unit.ui.hostile import HOSTILE

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.shell.health import serving
from tfgpujob.shell.job_series import JobSeries
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.store import Store


def text_of(store: Store, *, most: int = 100, after: timedelta = timedelta(0)) -> str:
    return JobSeries(store, most, lambda: NOW + after).collect()()


def test_a_job_says_what_it_does() -> None:
    lines = text_of(store_with_a_job()).splitlines()
    of_job = 'job_name="train",job_namespace="default"'
    for line in (
        f'tfgpu_job_info{{{of_job},queue="gold",strategy="MultiWorkerMirrored"}} 1.0',
        f'tfgpu_job_phase{{{of_job},phase="Running"}} 1.0',
        f"tfgpu_job_restarts_total{{{of_job}}} 1.0",
        f"tfgpu_job_disruptions_total{{{of_job}}} 2.0",
        f"tfgpu_job_gpus{{{of_job}}} 8.0",
        f"tfgpu_job_gpu_seconds_total{{{of_job}}} 82480.0",
        f'tfgpu_job_seconds{{{of_job},part="useful"}} 7890.0',
        f"tfgpu_job_step_seconds{{{of_job}}} 0.25",
        f"tfgpu_job_examples_per_second{{{of_job}}} 4096.0",
        f"tfgpu_job_gpu_use_ratio{{{of_job}}} 0.8",
        f"tfgpu_job_gpu_memory_bytes{{{of_job}}} 2.147483648e+09",
    ):
        assert any(sorted(re.split(r"[{},]", line)) == sorted(re.split(r"[{},]", one)) for one in lines), line


def test_no_snapshot_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 jobs they held the event loop for 70 ms at each scrape."""
    store = store_with_a_job()
    monkeypatch.delattr(Store, "snapshot")
    assert "tfgpu_job_info{" in text_of(store)


def test_its_series_are_gone_a_minute_after_it() -> None:
    store = store_with_a_job(phase="Succeeded", completionTime="2026-03-04T15:20:00Z")
    assert "tfgpu_job_info{" in text_of(store, after=timedelta(seconds=60))
    assert "tfgpu_job_info{" not in text_of(store, after=timedelta(seconds=61))
    deleted = store_with_a_job()
    deleted.remove(Kind.JOB, "default", "train", "default/train")
    assert "tfgpu_job_info{" not in text_of(deleted)


def test_no_more_jobs_than_the_limit_have_series() -> None:
    store = Store()
    for number in range(5):
        store_with_a_job(name=f"job-{number}", store=store)
    text = text_of(store, most=3)
    assert {*re.findall(r'job_name="([^"]+)"', text)} == {"job-0", "job-1", "job-2"}
    assert "tfgpu_jobs_without_series 2.0" in text


def test_many_jobs_of_one_namespace_leave_the_others_theirs() -> None:
    store = Store()
    for number in range(5):
        store_with_a_job(namespace="a", name=f"job-{number}", store=store)
    for number in range(2):
        store_with_a_job(namespace="b", name=f"own-{number}", store=store)
    text = text_of(store, most=4)
    assert {*re.findall(r'job_name="([^"]+)"', text)} == {"job-0", "job-1", "own-0", "own-1"}
    assert "tfgpu_jobs_without_series 3.0" in text


@pytest.mark.parametrize("value", HOSTILE[:-3], ids=lambda text: ascii(text[:20]))
def test_hostile_texts_stay_in_their_label(value: str) -> None:
    text = text_of(store_with_a_job(phase=value + '"} 1\ntfgpu_forged 1'))
    assert not re.search("^tfgpu_forged", text, re.MULTILINE)


async def test_they_are_served_after_the_others() -> None:
    metrics, port = Metrics(), free_port()
    metrics.of_jobs = JobSeries(store_with_a_job(), 9, lambda: NOW).collect
    async with (
        serving(port, list, lambda: True, list, metrics),
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        text = await answer.text()
    assert text.index("process_cpu_seconds_total") < text.index("tfgpu_job_info{")


def debians(program: str, tmp_path: Path) -> str:
    """A program of Prometheus' package, which is installed if it is missing."""
    if (found := shutil.which(program)) is None:
        apt.install(["prometheus"], tmp_path / "apt.log")
        found = shutil.which(program)
    assert found is not None
    return found


def check(tmp_path: Path, *arguments: str, given: str = "") -> None:
    command = [debians("promtool", tmp_path), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.count("FAILED")) == (0, 0), done.stdout + done.stderr


@pytest.mark.deep
def test_prometheus_finds_nothing_to_say(tmp_path: Path) -> None:
    check(tmp_path, "check", "metrics", given=Metrics().text() + text_of(store_with_a_job()))


@pytest.mark.deep
async def test_prometheus_scrapes_1000_jobs_within_a_second(tmp_path: Path) -> None:
    store = Store()
    for number in range(1000):
        store_with_a_job(name=f"job-{number}", store=store)
    metrics, port, own = Metrics(), free_port(), free_port()
    metrics.of_jobs = JobSeries(store, 1000, lambda: NOW).collect
    began = time.thread_time()
    assert metrics.of_jobs()().count("tfgpu_job_info{") == 1000
    assert time.thread_time() - began < 1, "CPU seconds"
    target = {"job_name": "operator", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config = {"global": {"scrape_interval": "20s"}, "scrape_configs": [target]}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    listen = [f"--web.listen-address=127.0.0.1:{own}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command = [debians("prometheus", tmp_path), f"--config.file={tmp_path / 'prometheus.yaml'}", *listen]

    async def asked(query: str) -> float | None:
        url = f"http://127.0.0.1:{own}/api/v1/query"
        try:
            async with session.get(url, params={"query": query}) as answer:
                found = (await answer.json())["data"]["result"]
        except (aiohttp.ClientError, KeyError):
            return None
        return float(found[0]["value"][1]) if found else None

    async with serving(port, list, lambda: True, list, metrics), aiohttp.ClientSession() as session:
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                async with asyncio.timeout(4 * PATIENCE):
                    while await asked("up") is None:
                        await asyncio.sleep(0.1)
                assert await asked("up") == 1, "scraped"
                assert await asked("count(tfgpu_job_info)") == 1000
                assert (await asked("count({job='operator'})") or 0) > 20_000
                print(f"it took Prometheus {await asked('scrape_duration_seconds')} s")
            finally:
                process.kill()


def series(name: str, values: str, **labels: str) -> Any:
    told = {"namespace": "ops", "job_namespace": "team", "job_name": "a", **labels}
    return {
        "series": f"{name}{{{','.join(f'{k}={v!r}' for k, v in told.items())}}}".replace("'", '"'),
        "values": values,
    }


FIRES: dict[str, tuple[str, list[Any]]] = {
    "TFGPUOperatorNoLeader": ("10m", []),
    "TFGPUReconcileErrors": ("40m", [series("tfgpu_reconciles_total", "0+60x60", result="error")]),
    "TFGPUQueueBehind": ("30m", [series("tfgpu_queue_depth", "200x60")]),
    "TFGPUJobsStalled": ("40m", [series("tfgpu_jobs_stalled", "1x60")]),
    "TFGPUJobsQuarantined": ("40m", [series("tfgpu_jobs_quarantined", "1x60")]),
    "TFGPUJobGPUsIdle": ("40m", [series("tfgpu_job_gpu_use_ratio", "0.01x60")]),
    "TFGPUJobGoodputLow": (
        "3h",
        [series("tfgpu_job_seconds", "0+10x240", part="useful"), series("tfgpu_job_phase", "1x240", phase="Running")],
    ),
    "TFGPUJobWaits": ("2h", [series("tfgpu_job_phase", "1x200", phase="Pending")]),
}


@pytest.mark.deep
def test_every_alert_fires(tmp_path: Path) -> None:
    objects = render({"metrics": {**ALL_MONITORING["metrics"], "jobSeries": 9}})
    rules = of(objects, "PrometheusRule")["spec"]
    assert {rule["alert"] for rule in rules["groups"][0]["rules"]} == FIRES.keys()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    check(tmp_path, "check", "rules", "rules.yaml")
    known = {rule["alert"]: rule for rule in rules["groups"][0]["rules"]}
    tests = []
    for name, (at, given) in FIRES.items():
        of_job = {"job_namespace": "team", "job_name": "a", "namespace": "ops"} if name.startswith("TFGPUJob") else {}
        more = {key: label for key in ("part",) for label in ["useful"] if name == "TFGPUJobGoodputLow"}
        more |= {"phase": "Pending"} if name == "TFGPUJobWaits" else {}
        labels = known[name]["labels"] | ({} if "Jobs" in name else of_job | more)
        expected = [{"exp_labels": labels, "exp_annotations": known[name]["annotations"]}]
        alert = {"alertname": name, "eval_time": at, "exp_alerts": expected}
        tests.append({"interval": "1m", "input_series": given, "alert_rule_test": [alert]})
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    check(tmp_path, "test", "rules", "tests.yaml")
