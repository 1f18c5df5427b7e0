"""TensorBoard on a job: the pod that shows its events, the port that leads there, and what stays behind: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from aiohttp import WSMessage, WSMsgType
from tests.harness.live import LiveCluster
from tests.harness.scenario import job

from tfgpujob.api import parse_job
from tfgpujob.cli import main as cli
from tfgpujob.cli.exits import Exit
from tfgpujob.client import Client, Job, TensorBoardError, tensorboard
from tfgpujob.client.forward import answers
from tfgpujob.client.viewer import PORT, viewer_pod
from tfgpujob.core.plan import resolve
from tfgpujob.core.snapshot import Config, Object
from tfgpujob.shell.connection import Connection

PAGE = b"TensorBoard's page " * 100_000
TRAINER = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1, "output": {"claim": "out"}}


class Page(BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(tensorboard, "CALM_SECONDS", 0.05)


@contextmanager
def board(live: LiveCluster) -> Iterator[None]:
    """TensorBoard listens in every pod."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        live.front.listening[PORT] = server.server_address[1]
        try:
            yield
        finally:
            del live.front.listening[PORT]
            server.shutdown()


def started(name: str = "curves", *, trainer: Mapping[str, Any] | None = TRAINER, **spec: Any) -> Job:
    """A job whose first attempt has begun."""
    made = job(name, "OneDevice", worker=1, spec={**({"trainer": trainer} if trainer else {}), **spec})
    made["metadata"] |= {"namespace": "team", "uid": "u-1"}
    parsed = parse_job(made)
    assert not isinstance(parsed, tuple), parsed
    plan = resolve(parsed, Config(operator_image="o:1", trainer_image="t:1", operator_version="1"))
    return Job({**made, "status": {"plan": plan.to_status(), "attempt": 1}})


def viewers(live: LiveCluster) -> list[Object]:
    return live.do(lambda: [p for p in live.server.select("Pod") if "tensorboard" in p["metadata"]["name"]])


def test_the_pod_reads_the_claim_and_passes_pod_security_restricted() -> None:
    pod = viewer_pod(started())
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "example.com/train:1"
    assert container["command"][:3] == ["tensorboard", "--logdir", "/output/tensorboard"]
    assert {"name": "tfgpu-output", "mountPath": "/output", "readOnly": True} in container["volumeMounts"]
    assert {"name": "tfgpu-output", "persistentVolumeClaim": {"claimName": "out"}} in spec["volumes"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False


def test_the_pod_goes_with_the_job_and_is_none_of_the_operators() -> None:
    metadata = viewer_pod(started())["metadata"]
    assert [(owner["uid"], "controller" in owner) for owner in metadata["ownerReferences"]] == [("u-1", False)]
    assert not any(label.startswith("tfgpu.dev/") for label in metadata["labels"])


@pytest.mark.parametrize("path", ["/output", "/output/"])
def test_what_the_template_mounts_there_is_what_is_shown(path: str) -> None:
    mount = {"name": "nfs", "mountPath": path, "subPath": "runs"}
    container = {"name": "tensorflow", "volumeMounts": [mount]}
    volume = {"name": "nfs", "nfs": {"server": "files", "path": "/"}}
    template = {"spec": {"containers": [container], "volumes": [volume], "nodeSelector": {"pool": "gpu"}}}
    trainer = {**TRAINER, "output": {}}
    spec = viewer_pod(started(trainer=trainer, replicaSpecs={"worker": {"template": template}}))["spec"]
    assert {**mount, "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert volume in spec["volumes"]
    assert spec["nodeSelector"] == {"pool": "gpu"}


def with_template(pod_spec: Object, **trainer: Any) -> Job:
    return started(
        trainer={**TRAINER, "output": {}, **trainer}, replicaSpecs={"worker": {"template": {"spec": pod_spec}}}
    )


def mounted(*, env: Sequence[Object] = (), volume: Object | None = None, **mount: Any) -> Job:
    """A job whose template mounts a volume where the trainer writes."""
    container = {
        "name": "tensorflow",
        "env": [*env],
        "volumeMounts": [{"name": "nfs", "mountPath": "/output", **mount}],
    }
    volumes = [{"name": "nfs", **(volume or {"nfs": {"server": "files", "path": "/"}})}]
    return with_template({"containers": [container], "volumes": volumes})


def field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ("runs/$(TFGPU_JOB)/$(TFGPU_ATTEMPT).$(TFGPU_REPLICA_RESTART)", "runs/curves/3.2"),
        ("$(POD)/$(WHO)", "curves-worker-0/by-ann$(POD)"),
        ("$$(POD)-$(SPACE)$(ATTEMPT)", "$(POD)-team3"),
    ],
)
def test_a_path_with_variables_is_the_one_that_the_jobs_pod_has(expression: str, path: str) -> None:
    env = [
        field("POD", "metadata.name"),
        field("SPACE", "metadata.namespace"),
        field("ATTEMPT", "metadata.labels['tfgpu.dev/attempt']"),
        {"name": "WHO", "value": "by-ann$$(POD)"},
    ]
    made = mounted(env=env, subPathExpr=expression)
    made.raw["status"].update(attempt=3, restartRecords=[{"role": "worker", "index": 0, "restarts": 2}])
    mount = viewer_pod(made)["spec"]["containers"][0]["volumeMounts"][0]
    assert mount == {"name": "nfs", "mountPath": "/output", "subPath": path, "readOnly": True}


@pytest.mark.parametrize(
    "variable",
    [
        field("WHERE", "spec.nodeName"),
        {"name": "WHERE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "WHERE", "value": "$(FROM_A_CONFIG_MAP)"},
    ],
)
def test_a_path_that_only_the_node_knows_is_refused(variable: Object) -> None:
    with pytest.raises(TensorBoardError, match=r"a subPathExpr with WHERE, whose value only the node knows; use one"):
        viewer_pod(mounted(env=[variable], subPathExpr="runs/$(WHERE)"))


def test_a_volume_of_the_pods_own_is_read_through_its_claim() -> None:
    spec = viewer_pod(mounted(volume={"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}))["spec"]
    assert {"name": "nfs", "persistentVolumeClaim": {"claimName": "curves-worker-0-nfs"}} in spec["volumes"]


@pytest.mark.parametrize(
    ("of_pod", "of_container", "expected"),
    [
        ({}, {}, {"runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}),
        ({}, {"runAsUser": 1001, "runAsGroup": 50}, {"runAsUser": 1001, "runAsGroup": 50}),
        ({"runAsUser": 7, "fsGroup": 8}, {"runAsUser": 1001}, {"runAsUser": 1001, "fsGroup": 8}),
        ({}, {"seLinuxOptions": {"level": "s0:c1,c2"}}, {"seLinuxOptions": {"level": "s0:c1,c2"}}),
        (
            {},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}},
        ),
        (
            {"seccompProfile": {"type": "Unconfined"}, "sysctls": [{"name": "a", "value": "b"}]},
            {"seccompProfile": {"type": "Unconfined"}, "privileged": False},
            {"seccompProfile": {"type": "RuntimeDefault"}},
        ),
    ],
)
def test_it_may_read_what_the_container_writes(of_pod: Object, of_container: Object, expected: Object) -> None:
    """And passes Pod Security "restricted", whatever the training needs."""
    template = {"securityContext": of_pod, "containers": [{"name": "tensorflow", "securityContext": of_container}]}
    made = with_template(template, output={"claim": "out"})
    context = viewer_pod(made)["spec"]["securityContext"]
    assert {key: context[key] for key in expected} == expected
    assert context["runAsNonRoot"] is True
    assert not {"sysctls", "privileged"} & context.keys()


def test_a_spec_that_was_spoilt_later_is_no_crash() -> None:
    made = started()
    made.raw["spec"]["replicaSpecs"] = {"worker": {"replicas": "many"}}
    with pytest.raises(TensorBoardError, match="a spec that is refused; see tfgpu describe curves"):
        viewer_pod(Job(made.raw))


def test_an_own_program_says_where_its_events_are() -> None:
    mount = {"name": "logs", "mountPath": "/logs"}
    volume = {"name": "logs", "persistentVolumeClaim": {"claimName": "logs"}}
    pod_spec = {
        "containers": [{"name": "tensorflow", "volumeMounts": [mount]}],
        "volumes": [volume],
        "securityContext": {"runAsUser": 0},
    }
    own = started(trainer=None, replicaSpecs={"worker": {"template": {"spec": pod_spec}}})
    with pytest.raises(TensorBoardError, match="name it with --logdir"):
        viewer_pod(own)
    spec = viewer_pod(own, logdir="/logs/fit", image="board:1")["spec"]
    assert spec["containers"][0]["image"] == "board:1"
    assert volume in spec["volumes"]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (0, False)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            started(trainer={**TRAINER, "output": {}}),
            "name a claim in spec.trainer.output.claim; while the pod is there: ",
        ),
        (Job({**started().raw, "status": {}}), "has written nothing; wait for it: tfgpu wait curves --for Running"),
    ],
)
def test_events_that_nobody_can_read_are_said_to_be_so(made: Job, problem: str) -> None:
    with pytest.raises(TensorBoardError, match=problem):
        viewer_pod(made)


def submit(live: LiveCluster, name: str) -> None:
    with Client() as client:
        client.submit(job(name, "OneDevice", worker=1, spec={"trainer": TRAINER}))
    live.until_running(name)


def test_a_port_of_this_machine_leads_to_it_while_somebody_looks(live: LiveCluster) -> None:
    submit(live, "seen")
    with Client() as client:
        looks = client.tensorboard("seen", port=0)
        waiting = [next(looks)]
        while waiting[-1].waiting != "it starts":
            waiting.append(next(looks))
        assert {seen.url for seen in waiting} == {None}
        with board(live):
            url = next(looks).url
            assert url is not None
            for body in (None, b"x" * 100_000):
                with urllib.request.urlopen(url, data=body, timeout=20) as answer:
                    assert (answer.status, answer.read()) == (200, PAGE)
            assert Page.bodies == [b"x" * 100_000]
        assert len(viewers(live)) == 1
        assert live.job("seen")["status"]["ready"] == "1/1"
        looks.close()
    live.until(lambda: not [k for k in live.server.objects if "tensorboard" in k[2]], "its pod is gone")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


async def test_a_port_that_nobody_has_opened_yet_does_not_answer() -> None:
    class HangsUp:
        @asynccontextmanager
        async def messages(self, *_: Any) -> AsyncIterator[HangsUp]:
            yield self

        async def send_bytes(self, _: bytes) -> None:
            raise ConnectionResetError("Cannot write to closing transport")

    assert not await answers(cast("Connection", HangsUp()), "/pods/p", PORT)


async def test_a_connection_that_breaks_does_not_answer() -> None:
    class Breaks:
        def __init__(self) -> None:
            broken = WSMessage(WSMsgType.ERROR, OSError("broken"), None)
            self._messages = [broken, broken]

        @asynccontextmanager
        async def messages(self, *_: Any) -> AsyncIterator[Breaks]:
            yield self

        async def send_bytes(self, _: bytes) -> None:
            pass

        def __aiter__(self) -> Breaks:
            return self

        async def __anext__(self) -> Any:
            if not self._messages:
                raise StopAsyncIteration
            return self._messages.pop()

    assert not await answers(cast("Connection", Breaks()), "/pods/p", PORT)


def test_a_viewer_that_ends_says_its_last_words(live: LiveCluster) -> None:
    submit(live, "dies")
    with Client() as client:
        looks = client.tensorboard("dies", port=0)
        pod = next(looks).pod
        live.finish(pod, 127, "exec: tensorboard: not found")
        with pytest.raises(TensorBoardError, match="has ended: exec: tensorboard: not found; if its"):
            list(looks)
    assert viewers(live) == []


def test_it_outlives_an_outage_and_ends_with_its_job(live: LiveCluster) -> None:
    submit(live, "passes")
    with board(live), Client() as client:
        looks = client.tensorboard("passes", port=0)
        while next(looks).url is None:
            pass
        live.front.outage = 3

        def delete_after_the_outage() -> None:
            while live.front.outage:
                time.sleep(0.01)
            live.do(lambda: live.server.delete("TFGPUJob", "default", "passes", by="somebody"))

        threading.Thread(target=delete_after_the_outage, daemon=True).start()
        assert list(looks) == []
        assert live.front.outage == 0


def test_a_port_that_is_taken_makes_no_pod(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    submit(live, "taken")
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as other:
        port = str(other.server_address[1])
        assert cli.main(["tensorboard", "taken", "--port", port]) == Exit.USAGE
    assert f"port {port}: Address already in use; choose another with --port" in capsys.readouterr().err
    assert viewers(live) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_verb_shows_the_address_and_leaves_nothing_behind(number: signal.Signals, live: LiveCluster) -> None:
    name = f"looked-{number.name[3:].lower()}"
    submit(live, name)
    # What is started in a shell's background begins with the signal ignored, and so do its children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; import sys; from tfgpujob.cli.main import main; sys.exit(main())"
    with board(live):
        looking = subprocess.Popen(
            [sys.executable, "-u", "-c", code, "tensorboard", name, "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        assert looking.stdout is not None
        line = looking.stdout.readline()
        assert line.startswith(f"TensorBoard of {name}: http://127.0.0.1:")
        looking.send_signal(number)
        assert looking.wait(30) == 128 + number
    live.until(lambda: not [k for k in live.server.objects if f"{name}-tensorboard" in k[2]], "its pod is gone")


@pytest.mark.parametrize(
    ("trainer", "events"),
    [({}, "runs/digits/tensorboard"), ({"output": {"claim": "out"}}, "runs/claims/out/tensorboard")],
)
def test_on_a_run_of_this_machine(trainer: Mapping[str, Any], events: str, tmp_path: Path) -> None:
    """The process becomes TensorBoard: here one that says how it was started."""
    library = tmp_path / "library/tensorboard"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    (library / "main.py").write_text("import sys; print(*sys.argv[1:])")
    (tmp_path / events).mkdir(parents=True)
    (tmp_path / "runs/digits/.tfgpu").mkdir(parents=True)
    (tmp_path / "runs/digits/.tfgpu/job.json").write_text(json.dumps({"spec": {"trainer": trainer}}))
    shown = subprocess.run(
        [sys.executable, "-m", "tfgpujob.cli", "tensorboard", "digits", "--local", "--port", "7007"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(library.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"--logdir {events} --port 7007\n"


def test_what_a_local_run_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tensorboard", "digits", "--dir", str(tmp_path)]) == Exit.NOT_FOUND
    assert "name the folder of the run with --dir" in capsys.readouterr().err
    (tmp_path / "tensorboard").mkdir()
    assert cli.main(["tensorboard", "digits", "--local", "--dir", str(tmp_path)]) == Exit.USAGE
    assert "pip install 'tfgpujob[local]'" in capsys.readouterr().err
