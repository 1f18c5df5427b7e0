"""The client against a real operator on a server in memory, over HTTP."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from tests.harness.live import LiveCluster
from tests.harness.scenario import job
from tests.machine import PATIENCE

from tfgpujob import names
from tfgpujob.client import ApiError, AsyncClient, Client, InvalidJobError, code_map, job_of_file, logs
from tfgpujob.client.logs import Follower, View
from tfgpujob.convert.code import files_of, paths_of, wheel_lines
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.interface import WatchEvent
from tfgpujob.kube.lines import Part
from tfgpujob.names import Condition, Phase
from tfgpujob_contract.strategies import Strategy


def test_a_job_from_its_submission_to_its_end(live: LiveCluster, client: Client) -> None:
    made = client.submit(job("whole", worker=2))
    assert (made.name, made.namespace) == ("whole", "default")
    running = client.wait("whole", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    assert running.status.phase is Phase.RUNNING
    assert running.status.ready == "2/2"
    assert running.spec.strategy is Strategy.MULTI_WORKER_MIRRORED
    assert client.progress("whole") is None
    live.tell("whole", progress={"step": 7, "totalSteps": 90, "loss": "0.25"})
    progress = client.progress("whole")
    assert progress is not None
    assert (progress.step, progress.loss) == (7, "0.25")
    for i in range(2):
        live.finish(f"whole-worker-{i}", 0)
    ended = client.wait("whole", timeout_seconds=PATIENCE)
    assert (ended.finished, ended.succeeded, ended.failed) == (True, True, False)
    assert [pod["metadata"]["name"] for pod in client.pods("whole")] == ["whole-worker-0", "whole-worker-1"]
    _warns(live, "whole-worker-0", "Warning")
    _warns(live, "whole-worker-1", "Normal")
    _warns(live, "w", "Warning")
    _warns(live, "", "Warning")
    assert {event["involvedObject"]["name"] for event in client.events("whole")} == {"whole", "whole-worker-0"}
    assert client.nodes() == ()
    client.delete("whole")
    assert "whole" not in [found.name for found in client.list(all_namespaces=True)]


def _warns(live: LiveCluster, pod: str, kind: str) -> None:
    about = {"kind": "Pod", "namespace": "default"} | ({"name": pod} if pod else {})
    event = {"metadata": {"name": f"{pod or 'of-no-name'}.1"}, "involvedObject": about, "type": kind, "reason": "Odd"}
    live.do(lambda: live.server.create("Event", "default", event, by="kubelet"))


def test_curves_of_a_trainer_that_runs_and_of_one_that_has_ended(live: LiveCluster, client: Client) -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}
    client.submit(job("drawn", worker=2, spec={"trainer": trainer}))
    client.wait("drawn", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    assert client.series("drawn") == {}, "no trainer answers yet, or an older one does not know the question"
    told = {"names": ["loss"], "points": [[10, 2.5], [20, 1.5]]}
    where = "/api/v1/namespaces/default/pods/drawn-worker-0:8080/proxy/progress?series=0"
    live.front.behind[where] = {"train": told, "validation": {"names": ["loss"], "points": [[20, 1.75]]}}
    assert client.series("drawn") == {"loss": [(10, 2.5), (20, 1.5)], "val_loss": [(20, 1.75)]}
    live.say("drawn-worker-0", "hello", '{"tfgpu": "progress", "phase": "training", "step": 30, "loss": 1.25}')
    for i in range(2):
        live.finish(f"drawn-worker-{i}", 0)
    client.wait("drawn", timeout_seconds=PATIENCE)
    assert client.series("drawn") == {"loss": [(30, 1.25)]}


def test_a_job_that_would_be_refused_is_not_sent(live: LiveCluster) -> None:
    with Client() as client, pytest.raises(InvalidJobError, match="is not one of OneDevice") as refused:
        client.submit({**job("bad", worker=1), "spec": {"strategy": "Mirored", "replicaSpecs": {"worker": {}}}})
    assert refused.value.problems[0].field == "spec.strategy"
    assert "bad" not in [found["metadata"]["name"] for found in live.do(lambda: live.server.select(names.KIND))]


def test_suspend_resume_and_restart(live: LiveCluster, client: Client) -> None:
    client.submit(job("breaks", worker=1))
    client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    client.suspend("breaks")
    suspended = client.wait("breaks", condition=Condition.SUSPENDED, timeout_seconds=PATIENCE)
    assert suspended.status.phase is Phase.SUSPENDED
    client.resume("breaks")
    assert client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=PATIENCE).status.attempt == 2
    client.restart("breaks", timeout_seconds=PATIENCE)
    again = client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    assert again.status.attempt == 3
    live.finish("breaks-worker-0", 1)
    failed = client.wait("breaks", timeout_seconds=PATIENCE)
    assert failed.failed
    anew = client.restart("breaks", timeout_seconds=PATIENCE)
    assert anew.uid != failed.uid
    assert client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=PATIENCE).status.attempt == 1


@pytest.mark.slow
def test_a_job_that_was_suspended_for_idle_gpus_is_resumed(live: LiveCluster, client: Client) -> None:
    client.submit(job("idle", worker=1, run_policy={"suspend": False}))
    running = client.wait("idle", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    accepted = next(one for one in running.raw["status"]["conditions"] if one["type"] == "Accepted")
    idle = {**accepted, "type": "Suspended", "reason": "NotUsed", "message": "Its GPUs are idle."}
    live.tell("idle", conditions=[accepted, idle], phase="Suspended")
    live.until(lambda: not live.server.select("Pod", "default", "tfgpu.dev/job-name=idle"), "its pod goes")
    client.resume("idle")
    again = client.wait("idle", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
    assert (again.status.attempt, again.is_true(Condition.SUSPENDED)) == (2, False)


@pytest.mark.slow
def test_logs_of_all_replicas_are_followed_through_a_restart(live: LiveCluster, client: Client) -> None:
    client.submit(job("talks", worker=2, run_policy={"cleanPodPolicy": "None"}))
    live.until_running("talks")
    live.say("talks-worker-0", "old", "hello from 0")
    live.say("talks-worker-1", "hello from 1")
    seen = []
    for line in client.logs("talks", follow=True, tail=1):
        seen.append((line.role, line.index, line.attempt, line.text))
        if len(seen) == 2:
            client.restart("talks", timeout_seconds=PATIENCE)
            client.wait("talks", condition=Condition.RUNNING, timeout_seconds=PATIENCE)
            live.say("talks-worker-0", "again")
        if line.text == "again":
            live.finish("talks-worker-0", 0)
            live.finish("talks-worker-1", 0)
    assert sorted(seen[:2]) == [("worker", 0, 1, "hello from 0"), ("worker", 1, 1, "hello from 1")]
    assert seen[2:] == [("worker", 0, 2, "again")]
    assert [line.text for line in client.logs("talks", role="worker", index=0)] == ["again"]
    assert list(client.logs("talks", role="chief")) == []


def test_a_finished_job_starts_again_with_its_code(live: LiveCluster, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def model(): ...\ndef data(split): ...\n")
    made, code = job_of_file(script, name="rerun", trainer={"globalBatchSize": 8, "epochs": 1})
    client.submit(made, [code])
    live.finish("rerun-worker-0", 1)
    client.wait("rerun", timeout_seconds=PATIENCE)
    client.suspend("rerun")
    anew = client.restart("rerun", timeout_seconds=PATIENCE)
    assert not anew.spec.run_policy.suspend
    name = code["metadata"]["name"]
    held = live.do(lambda: live.server.get("ConfigMap", "default", name))
    assert held["data"] == code["data"]
    assert [owner["uid"] for owner in held["metadata"]["ownerReferences"]] == [anew.uid]
    client.delete("rerun")
    live.until(lambda: ("ConfigMap", "default", name) not in live.server.objects, "its code goes too")


def test_a_job_is_not_lost_while_the_pods_of_the_one_before_it_linger(live: LiveCluster, client: Client) -> None:
    pod = ("Pod", "default", "lingers-worker-0")

    def held(*finalizers: str) -> None:
        body = copy.deepcopy(live.server.get(*pod))
        body["metadata"]["finalizers"] = list(finalizers)
        live.server.replace("Pod", "default", body, by="somebody")

    old = client.submit(job("lingers", worker=1))
    live.finish("lingers-worker-0", 1)
    client.wait("lingers", timeout_seconds=PATIENCE)
    live.do(lambda: held("example.com/backup"))
    anew = client.restart("lingers", timeout_seconds=PATIENCE)
    assert anew.uid != old.uid
    successor = (names.KIND, "default", "lingers")
    live.until(lambda: "earlier start is still going" in str(live.server.objects[successor]), "it says why it waits")
    live.do(held)
    live.until(lambda: anew.uid in str(live.server.objects.get(pod)), "it starts")


def test_a_restart_that_would_be_refused_deletes_nothing(live: LiveCluster, client: Client) -> None:
    def refuse(verb: str, kind: str, _: Object) -> ApiError | None:
        return ApiError(422, "Invalid", "a rule of today") if (verb, kind) == ("create", names.KIND) else None

    submitted = client.submit(job("yesterday", worker=1))
    live.finish("yesterday-worker-0", 1)
    client.wait("yesterday", timeout_seconds=PATIENCE)
    live.do(lambda: live.server.rules.append(refuse))
    try:
        with pytest.raises(ApiError, match="a rule of today"):
            client.restart("yesterday", timeout_seconds=PATIENCE)
    finally:
        live.do(lambda: live.server.rules.remove(refuse))
    assert client.get("yesterday").uid == submitted.uid


async def test_waiting_goes_on_through_an_outage(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfgpujob.client.server.RECONNECT_SECONDS", 0.01)
    async with await AsyncClient.connect() as client:
        await client.submit(job("patient", worker=1))
        seen = client.watch("patient")
        await anext(seen)
        await asyncio.to_thread(live.do, lambda: setattr(live.front, "outage", 3))
        async for found in seen:
            if found.is_true(Condition.RUNNING):
                break
        assert live.front.outage == 0


async def test_a_watch_that_ends_at_once_is_not_begun_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Brief:
        namespace = "default"
        lists = 0

        async def send(self, *_: object, **__: object) -> Object:
            self.lists += 1
            return {"items": [{"metadata": {"name": "a", "uid": "u"}}], "metadata": {"resourceVersion": "1"}}

        async def watch_at(self, *_: object) -> AsyncIterator[WatchEvent]:
            none: tuple[WatchEvent, ...] = ()
            for event in none:
                yield event

    monkeypatch.setattr("tfgpujob.client.server.RECONNECT_SECONDS", 1000.0)
    server = Brief()
    with pytest.raises(TimeoutError):
        await AsyncClient(cast("Connection", server)).wait("a", timeout_seconds=0.1)
    assert server.lists == 1


async def test_the_rest_of_a_broken_log_is_read_after_its_pod_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def pod(state: str) -> Object:
        labels = {names.LABEL_JOB_NAME: "a", names.LABEL_REPLICA_TYPE: "worker", names.LABEL_REPLICA_INDEX: "0"}
        detail = {"exitCode": 1, "finishedAt": "2026-01-01T00:00:09Z"} if state == "terminated" else {}
        statuses = [{"name": names.CONTAINER, "state": {state: detail}}]
        metadata = {"name": "a-worker-0", "namespace": "d", "uid": "u", "resourceVersion": "1"}
        return {
            "metadata": {**metadata, "labels": {**labels, names.LABEL_ATTEMPT: "1"}},
            "spec": {},
            "status": {"phase": "Failed" if detail else "Running", "containerStatuses": statuses},
        }

    class Cut:
        def __init__(self) -> None:
            self.asked: list[str | None] = []

        async def stream(self, _: str, query: dict[str, str], **__: int) -> AsyncIterator[list[Part]]:
            self.asked.append(query.get("sinceTime"))
            yield [Part(b"2026-01-01T00:00:11Z one")]
            if len(self.asked) == 1:
                raise ApiError(0, "Unreachable", "cut")
            yield [Part(b"2026-01-01T00:00:12Z the traceback")]

    looks = iter([View([pod("running")], ended=False), None, View([pod("terminated")], ended=True)])

    async def look() -> View:
        found = next(looks)
        if found is None:
            raise ApiError(503, "ServiceUnavailable", "apiserver is shutting down")
        return found

    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)
    server = Cut()
    follower = Follower(cast("Connection", server), look)
    assert [line.text async for lines in follower.lines() for line in lines] == ["one", "the traceback"]
    assert server.asked == [None, "2026-01-01T00:00:01Z"], "a margin before the last line"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a/train.py": b"x", "b/train.py": b"y"}, "two files are called train.py"),
        ({"my data.py": b"x"}, "has a name that no ConfigMap takes"),
        ({"a..b.py": b"x"}, "has a name that no ConfigMap takes"),
        ({"large.py": b"#" * 1_000_001}, "a ConfigMap holds"),
    ],
)
def test_code_that_no_config_map_takes(files: dict[str, bytes], problem: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        code_map("job", [tmp_path / name for name in files])


def test_a_folder_is_code_with_its_paths_and_what_is_no_text_comes_too(tmp_path: Path) -> None:
    for name, content in {
        "train.py": b"import net.layers\nmodel.fit()",
        "net/__init__.py": b"",
        "net/deep/layers.py": b"x = 1",
        "net/logo.png": b"\x89\xff",
        "net/__pycache__/layers.pyc": b"\x00",
        "net/.git/HEAD": b"",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    code = code_map("job", [tmp_path / "train.py", tmp_path / "net"])
    assert code["data"].keys() == {"train.py", "net..__init__.py", "net..deep..layers.py"}
    paths = paths_of(code)
    found = dict(files_of(code, paths))
    assert found == {
        "train.py": b"import net.layers\nmodel.fit()",
        "net/__init__.py": b"",
        "net/deep/layers.py": b"x = 1",
        "net/logo.png": b"\x89\xff",
    }
    made, _ = job_of_file(tmp_path / "train.py", name="job", trainer={}, extra_files=[tmp_path / "net"])
    assert made["spec"]["trainer"]["code"]["configMap"]["paths"] == paths
    assert paths_of(code_map("job", [tmp_path / "train.py"])) is None


def test_links_that_lead_out_of_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "secret").write_text("token")
    (tmp_path / "net/layers.py").write_text("x = 1")
    (tmp_path / "net/same.py").symlink_to("layers.py")
    assert code_map("job", [tmp_path / "net"])["data"] == {"net..layers.py": "x = 1", "net..same.py": "x = 1"}
    (tmp_path / "net/settings.py").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"net/settings\.py is a link to .*/secret, which is not in .*/net: put the"):
        code_map("job", [tmp_path / "net"])


def test_nothing_is_read_of_a_folder_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net").mkdir()
    with (tmp_path / "net/large.bin").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "net/a.py").touch()
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read"))
    with pytest.raises(ValueError, match=r"large\.bin, and a ConfigMap holds 1000000"):
        code_map("job", [tmp_path / "net"])


def test_a_wheel_among_the_code_is_installed() -> None:
    assert wheel_lines([Path("a.py")]) == []
    assert wheel_lines([Path("dist/mine-1.2-py3-none-any.whl")]) == ["--find-links .", "mine==1.2"]


async def test_the_asynchronous_client_watches_until_the_job_is_deleted(live: LiveCluster) -> None:
    async with await AsyncClient.connect() as client:
        await client.submit(job("watched", worker=1))
        phases = []
        async for found in client.watch("watched"):
            phases.append(found.status.phase)
            if found.is_true(Condition.RUNNING):
                await client.delete("watched")
        assert phases[-1] is Phase.RUNNING
        with pytest.raises(ApiError) as missing:
            await client.wait("watched", timeout_seconds=PATIENCE)
        assert missing.value.code == 404


async def test_waiting_has_an_end(live: LiveCluster) -> None:
    async with await AsyncClient.connect() as client:
        await client.submit(job("endless", worker=1))
        with pytest.raises(TimeoutError):
            await client.wait("endless", timeout_seconds=0.2)
        jobs, pods = await asyncio.gather(client.list(), client.pods("endless"))
        assert "endless" in [found.name for found in jobs]
        assert all(pod["kind"] == "Pod" for pod in pods)


async def test_the_synchronous_client_works_where_a_loop_is_running(live: LiveCluster) -> None:
    """As in a notebook."""
    with Client() as client:
        client.submit(job("notebook", worker=1))
        assert next(client.watch("notebook")).name == "notebook"
