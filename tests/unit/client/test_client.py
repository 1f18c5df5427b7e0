"""The client against a real operator on a server in memory, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.harness.live import LiveCluster
from tests.harness.scenario import job

from tfgpujob import names
from tfgpujob.client import ApiError, AsyncClient, Client, InvalidJobError, code_map, job_of_file
from tfgpujob.names import Condition, Phase, Strategy


def test_a_job_from_its_submission_to_its_end(live: LiveCluster) -> None:
    with Client() as client:
        made = client.submit(job("whole", worker=2))
        assert (made.name, made.namespace) == ("whole", "default")
        running = client.wait("whole", condition=Condition.RUNNING, timeout_seconds=20)
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
        ended = client.wait("whole", timeout_seconds=20)
        assert (ended.finished, ended.succeeded, ended.failed) == (True, True, False)
        assert [pod["metadata"]["name"] for pod in client.pods("whole")] == ["whole-worker-0", "whole-worker-1"]
        assert {event["involvedObject"]["name"] for event in client.events("whole")} == {"whole"}
        assert client.nodes() == ()
        client.delete("whole")
        assert "whole" not in [found.name for found in client.list(all_namespaces=True)]


def test_a_job_that_would_be_refused_is_not_sent(live: LiveCluster) -> None:
    with Client() as client, pytest.raises(InvalidJobError, match="is not one of OneDevice") as refused:
        client.submit({**job("bad", worker=1), "spec": {"strategy": "Mirored", "replicaSpecs": {"worker": {}}}})
    assert refused.value.problems[0].field == "spec.strategy"
    assert "bad" not in [found["metadata"]["name"] for found in live.do(lambda: live.server.select(names.KIND))]


def test_suspend_resume_and_restart(live: LiveCluster) -> None:
    with Client() as client:
        client.submit(job("breaks", worker=1))
        client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=20)
        client.suspend("breaks")
        assert client.wait("breaks", condition=Condition.SUSPENDED, timeout_seconds=20).status.phase is Phase.SUSPENDED
        client.resume("breaks")
        assert client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=20).status.attempt == 2
        client.restart("breaks", timeout_seconds=20)
        again = client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=20)
        assert again.status.attempt == 3
        live.finish("breaks-worker-0", 1)
        failed = client.wait("breaks", timeout_seconds=20)
        assert failed.failed
        anew = client.restart("breaks", timeout_seconds=20)
        assert anew.uid != failed.uid
        assert client.wait("breaks", condition=Condition.RUNNING, timeout_seconds=20).status.attempt == 1


def test_logs_of_all_replicas_are_followed_through_a_restart(live: LiveCluster) -> None:
    with Client() as client:
        client.submit(job("talks", worker=2, run_policy={"cleanPodPolicy": "None"}))
        live.until_running("talks")
        live.say("talks-worker-0", "old", "hello from 0")
        live.say("talks-worker-1", "hello from 1")
        seen = []
        for line in client.logs("talks", follow=True, tail=1):
            seen.append((line.role, line.index, line.attempt, line.text))
            if len(seen) == 2:
                client.restart("talks", timeout_seconds=50)
                client.wait("talks", condition=Condition.RUNNING, timeout_seconds=50)
                live.say("talks-worker-0", "again")
            if line.text == "again":
                live.finish("talks-worker-0", 0)
                live.finish("talks-worker-1", 0)
        assert sorted(seen[:2]) == [("worker", 0, 1, "hello from 0"), ("worker", 1, 1, "hello from 1")]
        assert seen[2:] == [("worker", 0, 2, "again")]
        assert [line.text for line in client.logs("talks", role="worker", index=0)] == ["again"]
        assert list(client.logs("talks", role="chief")) == []


def test_a_python_file_becomes_a_job_that_owns_its_code(live: LiveCluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def model(): ...\ndef data(split): ...\n")
    made, code = job_of_file(script, name="scripted", workers=2, trainer={"globalBatchSize": 64, "epochs": 1})
    with Client() as client:
        submitted = client.submit(made, [code])
        held = live.do(lambda: live.server.get("ConfigMap", "default", "scripted-code"))
        assert held["data"] == {"train.py": script.read_text()}
        assert held["metadata"]["ownerReferences"][0]["uid"] == submitted.uid
        assert submitted.spec.strategy is Strategy.MULTI_WORKER_MIRRORED
        with pytest.raises(ApiError) as taken:
            client.submit(made, [code])
        assert taken.value.code == 409
        client.delete("scripted")
        live.until(lambda: ("ConfigMap", "default", "scripted-code") not in live.server.objects, "its code goes too")


def test_a_job_whose_code_is_refused_does_not_stay(live: LiveCluster, tmp_path: Path) -> None:
    code = code_map("refused", [])
    live.do(lambda: live.server.create("ConfigMap", "default", code, by="somebody"))
    with Client() as client:
        with pytest.raises(ApiError) as refused:
            client.submit(job("refused", worker=1), [code])
        assert refused.value.code == 409
        with pytest.raises(ApiError) as gone:
            client.get("refused")
        assert gone.value.code == 404


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a/train.py": b"x", "b/train.py": b"y"}, "two files are called train.py"),
        ({"data.py": b"\xff\xfe\x00"}, "is no text"),
        ({"large.py": b"#" * 1_000_001}, "a ConfigMap holds"),
    ],
)
def test_code_that_no_config_map_takes(files: dict[str, bytes], problem: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        code_map("job", [tmp_path / name for name in files])


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
            await client.wait("watched", timeout_seconds=20)
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
