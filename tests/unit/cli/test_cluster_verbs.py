"""The verbs as people type them, against a real operator on a server in memory, over HTTP."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.live import LiveCluster
from tests.harness.scenario import job
from tests.machine import PATIENCE
from tests.unit.cli.typed import Output, submit, typed

from tfgpujob.cli import main as cli
from tfgpujob.cli import revisions
from tfgpujob.client.job import Job
from tfgpujob.convert.code import CODE_LIMIT
from tfgpujob.exits import Exit
from tfgpujob.kube.errors import ApiError

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/digits-multiworker.yaml"


def header_and_row(job: str, capsys: Output) -> tuple[list[str], list[str]]:
    """Header and row in the printed table, which may show jobs of other tests too."""
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    return header, next(row for row in rows if job in row)


def test_from_submit_to_delete(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, "typed", worker=2)
    assert "default/typed is created; follow it: tfgpu logs typed -f" in capsys.readouterr().out
    assert typed(capsys, "wait", "typed", "--for", "Running", "--timeout", str(PATIENCE)).out == "typed is Running\n"
    live.tell("typed", progress={"step": 8, "totalSteps": 16, "percent": 50, "remainingSeconds": 65, "loss": "0.5"})
    assert cli.main(["list"]) == Exit.OK
    header, row = header_and_row("typed", capsys)
    assert header == ["NAME", "PHASE", "READY", "PROGRESS", "ETA", "GPUS", "AGE"]
    assert row[:-1] == ["typed", "Running", "2/2", "50", "%", "1m05s", "2"]
    live.tell("typed", gpuTime={"seconds": 7200, "gpus": 2, "time": live.job("typed")["status"]["startTime"]})
    assert cli.main(["top", "-A"]) == Exit.OK
    header, row = header_and_row("typed", capsys)
    assert "MultiWorkerMirrored" in row
    assert (header[-1], row[-1]) == ("GPU-HOURS", "2.0")
    assert "GPU-hours   2.0, all attempts together" in typed(capsys, "describe", "typed").out
    live.say("typed-worker-1", "loss: 0.5")
    assert typed(capsys, "logs", "typed").out == "worker-1 | loss: 0.5\n"
    live.say("typed-worker-1", record := '{"tfgpu": "progress", "step": 8, "steps": 16, "loss": 0.5}')
    assert typed(capsys, "logs", "typed", "--no-prefix").out == "loss: 0.5\nstep 8/16, loss 0.5000\n"
    for tail, lines in ((["--tail", "1"], ""), (["--tail"], "loss: 0.5\n")):
        assert typed(capsys, "logs", "typed", "--no-prefix", "--json", *tail).out == f"{lines}{record}\n"
    assert typed(capsys, "describe", "typed").out.startswith("default/typed: Running, 2/2 ready\n")
    for i in range(2):
        live.finish(f"typed-worker-{i}", 0)
    assert cli.main(["wait", "typed", "--timeout", str(PATIENCE)]) == Exit.OK
    assert cli.main(["delete", "typed"]) == Exit.OK
    assert cli.main(["get", "typed"]) == Exit.NOT_FOUND
    assert 'tfgpu: tfgpujobs.tfgpu.dev "typed" not found; see tfgpu list' in capsys.readouterr().err


def test_a_job_that_is_not_accepted_does_not_look_as_if_it_only_waited(live: LiveCluster, capsys: Output) -> None:
    """As a server without CEL stores it."""
    bad = job("workerless", worker=0)
    live.do(lambda: live.server.create("TFGPUJob", "default", bad, by="kubectl"))
    live.until(lambda: "status" in live.server.get("TFGPUJob", "default", "workerless"), "the operator has looked")
    for verb in (["list"], ["get", "workerless"]):
        printed = typed(capsys, *verb)
        row = next(line for line in printed.out.splitlines() if line.startswith("workerless"))
        assert "Pending (InvalidSpec)" in row
    assert printed.err == (
        "workerless is not accepted: spec.replicaSpecs.worker.replicas: MultiWorkerMirrored needs a worker; "
        "set replicas to 1 or more\n"
    )
    assert cli.main(["delete", "workerless"]) == Exit.OK


def test_top_of_a_job_says_what_each_replica_uses_and_what_is_not_known(
    live: LiveCluster, tmp_path: Path, capsys: Output
) -> None:
    trainer = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}
    submit(tmp_path, "busy", worker=2, spec={"trainer": trainer})
    live.until_running("busy")
    capsys.readouterr()
    out = typed(capsys, "top", "busy").out
    assert "not known: CPU and memory: this cluster has no metrics API" in out
    assert "not known: step and GPU memory: no trainer answers yet" in out

    usage = [{"name": "tensorflow", "usage": {"cpu": "1500m", "memory": "512Mi"}}]
    usage.append({"name": "sidecar", "usage": {"cpu": "250000000n", "memory": "1048576Ki"}})
    told = {"phase": "training", "step": 60, "steps": 240, "stepSeconds": 0.0251, "inputWait": 0.02}
    told |= {
        "workerSeconds": {"worker-0": 0.01, "worker-1": 19.06},
        "gpuMemoryMiB": [2048, 512],
        "gpuUsePercent": [93, 0],
    }
    live.front.behind |= {
        "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods": {
            "items": [{"metadata": {"name": "busy-worker-1"}, "containers": usage}]
        },
        "/api/v1/namespaces/default/pods/busy-worker-1:8080/proxy/progress": told,
    }
    header, *rows = (re.split(" {3,}", line) for line in typed(capsys, "top", "busy").out.splitlines())
    of = [dict(zip(header, row, strict=True)) for row in rows]
    assert of[0] == {**dict.fromkeys(header, "-"), "REPLICA": "worker-0", "STATE": "ready", "NODE": "node-1"}
    assert of[1] == {
        "REPLICA": "worker-1",
        "STATE": "ready",
        "NODE": "node-1",
        "CPU": "1.75",
        "MEMORY": "1.5 GiB",
        "STEP": "60/240",
        "STEP TIME": "25.1 ms",
        "OWN": "19.1 s",
        "INPUT WAIT": "2%",
        "GPU MEMORY": "2 GiB, 512 MiB",
        "GPU USE": "93%, 0%",
    }
    assert cli.main(["top", "busy", "-A"]) == Exit.USAGE


def test_a_job_that_runs_in_another_cluster_has_nothing_to_show_here(
    live: LiveCluster, tmp_path: Path, capsys: Output
) -> None:
    elsewhere = job("far", worker=1, spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(elsewhere))
    assert cli.main(["submit", str(tmp_path / "job.yaml")]) == Exit.OK
    assert capsys.readouterr().out == "default/far is created; follow it: tfgpu describe far\n"
    for verb in (["logs", "far", "-f"], ["top", "far"]):
        assert cli.main(verb) == Exit.USAGE
        assert "run by MultiKueue in another cluster, and its pods are there" in capsys.readouterr().err
    assert cli.main(["delete", "far"]) == Exit.OK


def test_suspend_resume_restart(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, "paused", worker=1)
    live.until_running("paused")
    assert cli.main(["suspend", "paused"]) == Exit.OK
    assert cli.main(["wait", "paused", "--for", "Suspended", "--timeout", str(PATIENCE)]) == Exit.OK
    assert cli.main(["resume", "paused"]) == Exit.OK
    live.until_running("paused")
    assert cli.main(["restart", "paused", "--timeout", str(PATIENCE)]) == Exit.OK
    live.until_running("paused")
    assert live.job("paused")["status"]["attempt"] == 3


def test_a_job_is_replaced_with_the_code_that_was_changed(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "own.py").write_text(first := "model.fit(x)")
    again = ["submit", str(tmp_path / "own.py"), "--replace"]
    assert cli.main(again) == Exit.OK, "there is none yet"
    uid, old = live.job("own")["metadata"]["uid"], live.job("own")["spec"]["trainer"]["code"]["configMap"]["name"]
    assert cli.main(["restart", "own", "--timeout", str(PATIENCE)]) == Exit.OK
    assert "with the code that it was submitted with; tfgpu submit FILE --replace sends" in capsys.readouterr().out
    live.until_running("own")
    live.finish("own-worker-0", 1)
    assert cli.main(["wait", "own", "--timeout", str(PATIENCE)]) == Exit.JOB_FAILED
    assert "tfgpu submit FILE --replace" in typed(capsys, "describe", "own").out
    assert "replace it with submit --replace, or choose another name" in typed(capsys, *again[:2], code=Exit.USAGE).err
    assert cli.main(again) == Exit.OK, "the code may be the same"
    live.until_running("own")
    held = live.do(lambda: live.server.get("ConfigMap", "default", old))
    new = live.job("own")["metadata"]["uid"]
    assert ([owner["uid"] for owner in held["metadata"]["ownerReferences"]], held["data"]) == ([new], {"own.py": first})
    assert new != uid
    (tmp_path / "own.py").write_text("model.fit(y)")
    assert cli.main(again) == Exit.OK, "it runs, and is replaced all the same"
    live.until_running("own")
    assert live.job("own")["spec"]["trainer"]["code"]["configMap"]["name"] != old
    live.until(lambda: ("ConfigMap", "default", old) not in live.server.objects, "the old code goes with the old job")


def test_a_job_stays_when_the_one_in_its_place_would_be_refused(
    live: LiveCluster, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "kept.py").write_text("model.fit(x)")
    again = ["submit", str(tmp_path / "kept.py"), "--replace"]
    assert cli.main(again) == Exit.OK
    uid = live.job("kept")["metadata"]["uid"]
    (tmp_path / "kept.py").write_text("model.fit(y)")
    live.front.refuse = lambda method, path: (
        ApiError(403, "Forbidden", "a policy says no") if method == "POST" and path.endswith("tfgpujobs") else None
    )
    assert cli.main(again) == Exit.CLUSTER
    live.front.refuse = lambda _method, _path: None
    assert "a policy says no" in capsys.readouterr().err
    assert live.job("kept")["metadata"]["uid"] == uid


def test_scale(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, "rigid", worker=2)
    live.until_running("rigid")
    assert "rigid is not elastic" in typed(capsys, "scale", "rigid", "--workers", "3", code=Exit.USAGE).err
    trains = {"gpu": {"perReplica": 0}, "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}}
    elastic = job("elastic", worker=2, spec=trains)
    elastic["spec"]["replicaSpecs"]["worker"]["maxReplicas"] = 3
    (tmp_path / "elastic.yaml").write_text(yaml.safe_dump(elastic))
    assert cli.main(["submit", str(tmp_path / "elastic.yaml")]) == Exit.OK
    live.until_running("elastic")
    assert "elastic will continue with 3 workers" in typed(capsys, "scale", "elastic", "--workers", "3").out
    live.until(lambda: live.server.get("TFGPUJob", "default", "elastic")["status"].get("ready") == "3/3", "3 run")
    assert live.job("elastic")["status"]["resizes"] == 1
    assert cli.main(["scale", "elastic", "--workers", "4"]) == Exit.USAGE
    assert "4 is not between minReplicas and maxReplicas" in capsys.readouterr().err
    for index in range(3):  # the job would wait half a minute for those that don't end with the first
        live.finish(f"elastic-worker-{index}", 0)
    assert cli.main(["wait", "elastic", "--timeout", str(PATIENCE)]) == Exit.OK
    assert cli.main(["scale", "elastic", "--workers", "1"]) == Exit.USAGE
    assert "elastic has finished; run it again: tfgpu restart elastic" in capsys.readouterr().err


def test_a_failed_job_is_an_exit_code(live: LiveCluster, tmp_path: Path) -> None:
    submit(tmp_path, "fails", worker=1)
    live.finish("fails-worker-0", 1)
    assert cli.main(["wait", "fails", "--timeout", str(PATIENCE)]) == Exit.JOB_FAILED


def test_several_jobs_are_deleted_at_once(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    for name in ("one", "two"):
        submit(tmp_path, name, worker=1)
    capsys.readouterr()
    printed = typed(capsys, "delete", "one", "absent", "two", code=Exit.NOT_FOUND)
    assert printed.out == "one is deleted\ntwo is deleted\n"
    assert '"absent" not found' in printed.err
    assert cli.main(["delete", "two"]) == Exit.NOT_FOUND


def test_what_takes_too_long_is_an_exit_code(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, "lasting", worker=1)
    live.until_running("lasting")
    capsys.readouterr()
    assert cli.main(["wait", "lasting", "--timeout", "0.1"]) == Exit.TIMEOUT
    ongoing = "lasting is Running after 0.1 s, and not Finished; it is not ended: look with tfgpu describe lasting"
    assert capsys.readouterr().err == f"tfgpu: {ongoing}\n"


def test_waiting_for_a_suspended_job_says_what_it_waits_for(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, "asleep", worker=1)
    live.until_running("asleep")
    assert cli.main(["suspend", "asleep"]) == Exit.OK
    assert cli.main(["wait", "asleep", "--for", "Suspended", "--timeout", str(PATIENCE)]) == Exit.OK
    capsys.readouterr()
    assert typed(capsys, "wait", "asleep", "--timeout", "0.1", code=Exit.TIMEOUT).err.splitlines() == [
        "asleep is suspended, and waits for: tfgpu resume asleep",
        "tfgpu: asleep is Suspended after 0.1 s, and not Finished; tfgpu resume asleep",
    ]


def test_what_a_job_says_does_nothing_to_the_terminal(
    live: LiveCluster, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "\x1b]0;owned\x07"
    submit(tmp_path, "hostile", worker=1)
    live.until_running("hostile")
    live.tell("hostile", progress={"step": 1, "loss": title})
    live.say("hostile-worker-0", f"10%\r20%{title}")
    # As on a terminal, where click would leave everything as it is.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for verb in (["describe", "hostile"], ["get", "hostile", "-o", "wide"], ["logs", "hostile"]):
        capsys.readouterr()
        out = typed(capsys, *verb).out
        assert "\\x1b]0;owned\\x07" in out
        assert "\x1b]" not in out
        assert "10%" not in out


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_output_for_programs(form: str, live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, f"as-{form}", worker=1)
    capsys.readouterr()
    read = json.loads if form == "json" else yaml.safe_load
    assert read(typed(capsys, "get", f"as-{form}", "-o", form).out)["metadata"]["name"] == f"as-{form}"
    assert read(typed(capsys, "list", "-o", form).out)["kind"] == "List"


def test_of_a_branch_the_commit_is_submitted(
    live: LiveCluster, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "_commit", lambda url, revision: f"{len(url):020d}{len(revision):020d}")
    git = {"url": "https://a.example/b", "revision": "main"}
    trainer = {"entrypoint": "train.py", "code": {"git": git}}
    spec = {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": trainer}
    job = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "metadata": {"name": "of-main"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert cli.main(["submit", str(tmp_path / "job.yaml")]) == Exit.OK
    commit = f"{19:020d}{4:020d}"
    assert live.job("of-main")["spec"]["trainer"]["code"]["git"]["revision"] == commit
    assert f"main of https://a.example/b is {commit}" in capsys.readouterr().err


def test_a_python_file_is_submitted_with_its_code(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    script = tmp_path / "my_net.py"
    script.write_text("def model(units=1): ...\ndef data(split): ...\n")
    (tmp_path / "needs.txt").write_text("rich==15.0  # colours\n")
    flags = ["--workers", "2", "--batch", "64", "--param", "units=32", "--claim", "results/my-net"]
    flags += ["--requirements", str(tmp_path / "needs.txt")]
    code, made = yaml.safe_load_all(typed(capsys, "submit", str(script), *flags, "--dry-run").out)
    assert (code["kind"], made["kind"]) == ("ConfigMap", "TFGPUJob")
    assert cli.main(["submit", str(script), *flags]) == Exit.OK
    assert "warning: there is no PersistentVolumeClaim results, and my-net waits" in capsys.readouterr().err
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "results"}, "spec": {}}
    live.do(lambda: live.server.create("PersistentVolumeClaim", "default", claim, by="kubectl"))
    assert typed(capsys, "submit", str(script), *flags, "--name", "my-net-2").err == ""
    spec = live.job("my-net")["spec"]
    assert spec["strategy"] == "MultiWorkerMirrored"
    assert spec["trainer"]["params"] == {"units": 32}
    assert spec["trainer"]["output"] == {"claim": "results", "subPath": "my-net"}
    assert spec["trainer"]["requirements"] == ["rich==15.0"]
    name = code["metadata"]["name"]
    assert re.fullmatch(r"my-net-code-[0-9a-f]{12}", name)
    assert spec["trainer"]["code"] == {"configMap": {"name": name}}
    held = live.do(lambda: live.server.get("ConfigMap", "default", name))
    assert (held["data"].keys(), held["immutable"]) == ({"my_net.py"}, True)


MOUNTED = {"template": {"spec": {"containers": [{"name": "tensorflow", "volumeMounts": [{"mountPath": "/out/"}]}]}}}


@pytest.mark.parametrize(
    ("output", "worker", "warned"),
    [
        ({}, {}, True),
        ({"directory": "/out"}, {}, True),
        ({"directory": "/out"}, MOUNTED, False),
        ({"claim": "runs"}, {}, False),
        ({"store": "s3://b/runs"}, {}, False),
        (None, {}, False),
    ],
)
def test_a_job_whose_files_go_with_its_pods_is_known(
    output: Mapping[str, str] | None, worker: Mapping[str, Any], warned: bool
) -> None:
    trainer = None if output is None else {"entrypoint": "train.py", "output": output}
    found = Job({"spec": {"replicaSpecs": {"worker": worker}, "trainer": trainer}})
    assert found.output_goes_with_pods is warned


def test_a_job_without_a_claim_is_submitted_with_a_warning(live: LiveCluster, capsys: Output) -> None:
    assert typed(capsys, "submit", SCRIPT, "--name", "fleeting").err == (
        "warning: checkpoints, the model and all other files of fleeting go with its pods; --claim NAME keeps them in "
        "a PersistentVolumeClaim\n"
    )


def test_what_explain_warns_of_is_said_when_a_job_is_submitted(
    live: LiveCluster, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job("rash", worker=1, spec={"runPolicy": {"stallSeconds": 60}})))
    [warned] = [line for line in typed(capsys, "explain", str(file)).out.splitlines() if line.startswith("warning ")]
    assert cli.main(["submit", str(file)]) == Exit.OK
    assert capsys.readouterr().err.removeprefix("warning: ").strip() == warned.removeprefix("warning").strip()


def test_a_plain_script_is_submitted_as_it_is(capsys: Output) -> None:
    code, made = yaml.safe_load_all(typed(capsys, "submit", SCRIPT, "--workers", "2", "--dry-run").out)
    assert code["data"] == {"plain_script.py": Path(SCRIPT).read_text()}
    assert made["spec"]["trainer"].keys() == {"entrypoint", "code"}


def test_a_program_with_a_coordinator_gets_parameter_servers(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "loop.py").write_text("tf.distribute.coordinator.ClusterCoordinator(strategy)")
    assert (
        cli.main(["submit", str(tmp_path / "loop.py"), "--workers", "3", "--dry-run", "--", "--lr", "1e-4"]) == Exit.OK
    )
    spec = list(yaml.safe_load_all(capsys.readouterr().out))[1]["spec"]
    assert spec["strategy"] == "ParameterServer"
    assert spec["replicaSpecs"] == {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 3, "gpus": 1}}
    assert spec["trainer"]["args"] == ["--lr", "1e-4"]


@pytest.mark.parametrize(
    ("text", "kind", "strategy"),
    [
        ("net.fit(1)", "a script: the trainer runs its fit(), evaluate() and predict()", "MultiWorkerMirrored"),
        ("with tf.GradientTape(): ...", "a program with a training loop of its own", "MultiWorkerMirrored"),
        ("m.train_on_batch(x, y)\nm.predict(x)", "a program with a training loop of its own", "MultiWorkerMirrored"),
        ("ClusterCoordinator", "", ""),
        ("def model(): ...\ndef data(split): ...", "", ""),
    ],
)
def test_explain_takes_any_file(text: str, kind: str, strategy: str, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "train.py").write_text(text)
    code = cli.main(["explain", str(tmp_path / "train.py"), "--workers", "2"])
    printed = capsys.readouterr()
    if kind:
        assert code == Exit.OK
        assert printed.err.startswith(f"train.py is {kind}")
        assert printed.out.startswith(f"train: {strategy}, 2 × worker")
        # The file is sent along: nothing is missing but a claim.
        assert [line.split()[1] for line in printed.out.splitlines() if line.startswith("warning")] == [
            "spec.trainer.output.claim"
        ]
    else:
        assert code == Exit.USAGE
        assert ("--batch 128 --dry-run" if "def " in text else "define model()") in printed.err


def test_what_a_file_imports_or_names_beside_it_and_is_not_sent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/training.py").write_text("import json, shapes\nfrom .. import main\nnet.fit(1)")
    (tmp_path / "shapes.py").write_text("from elsewhere import *")
    (tmp_path / "main.py").write_text("from lib.training import run\nrun('./rows/a.csv', 'big', 'out/log.csv')")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.csv").write_text("1,2,3")
    (tmp_path / "big").write_bytes(bytes(CODE_LIMIT + 1))
    monkeypatch.chdir(tmp_path)
    command = ["submit", "main.py", "--dry-run"]
    assert cli.main(command) == Exit.OK
    beside = "which is beside it and does not go with it; "
    too_large = "it is too large to be sent: download it, or bring it in an image or a volume"
    assert capsys.readouterr().err.replace(beside, "").splitlines() == [
        f"warning: main.py names big (1,000,001 bytes), if it is read, {too_large}",
        "warning: main.py imports lib (50 bytes), add --with lib, or --code . for the whole folder",
        "warning: main.py names rows (5 bytes), if it is read, add --with rows, or --code . for the whole folder",
        "warning: main.py imports shapes.py (23 bytes), add --with shapes.py, or --code . for the whole folder",
    ]
    (tmp_path / "big").unlink()
    (tmp_path / "runs/main/.tfgpu").mkdir(parents=True)
    for name, at in (("lock", 5), ("job.json", 9)):
        (tmp_path / "runs/main/.tfgpu" / name).write_text('{"spec": {}}')
        os.utime(tmp_path / "runs/main/.tfgpu" / name, (at, at))
    for at, written in ((4, False), (7, True)):
        os.utime(tmp_path / "rows/a.csv", (at, at))
        assert cli.main(command) == Exit.OK
        assert ("names rows" not in capsys.readouterr().err) == written, "of a run here it is an output"
    (tmp_path / "rows/b.csv").write_text("4")
    for whole in (["--with", "lib", "--with", "shapes.py", "--with", "rows"], ["--code", "."]):
        assert typed(capsys, *command, *whole).err == ""


def test_the_whole_folder_of_a_script_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    for name in ("src/train.py", "src/lib/runs/a.py", "data/rows.csv", "runs/train/run.json", ".git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("model.fit(x)")
    monkeypatch.chdir(tmp_path)
    sent, job = yaml.safe_load_all(typed(capsys, "submit", "src/train.py", "--code", ".", "--dry-run").out)
    trainer = job["spec"]["trainer"]
    assert trainer["entrypoint"] == "src/train.py"
    paths = trainer["code"]["configMap"]["paths"]
    assert sorted(paths.values()) == ["data/rows.csv", "src/lib/runs/a.py", "src/train.py"]
    assert paths.keys() == sent["data"].keys()
    assert cli.main(["submit", "src/train.py", "--code", "data"]) == Exit.USAGE
    assert f"src/train.py is not in {tmp_path}/data: name a folder that has it" in capsys.readouterr().err


def test_variables_are_those_of_every_role(capsys: Output) -> None:
    command = ["submit", SCRIPT, "--strategy", "ParameterServer", "--dry-run"]
    _, job = yaml.safe_load_all(typed(capsys, *command, "--env", "A=1", "--env", "URL=x=y").out)
    container = {"name": "tensorflow", "env": [{"name": "A", "value": "1"}, {"name": "URL", "value": "x=y"}]}
    assert [role["template"] for role in job["spec"]["replicaSpecs"].values()] == [
        {"spec": {"containers": [container]}}
    ] * 3
    assert "write it as --env A=VALUE" in typed(capsys, *command, "--env", "A", code=Exit.USAGE).err


def test_commands_to_copy_name_the_namespace(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    live.do(lambda: live.server.create("Namespace", "", {"metadata": {"name": "research"}}, by="setup"))
    written = {**job("there", "OneDevice", worker=1), "metadata": {"name": "there", "namespace": "research"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(written))
    assert cli.main(["submit", str(tmp_path / "job.yaml")]) == Exit.OK
    assert "follow it: tfgpu logs there -n research -f" in capsys.readouterr().out, "not the context's namespace"
    assert cli.main(["wait", "there", "-n", "research", "--timeout", "0"]) == Exit.TIMEOUT
    assert "tfgpu describe there -n research" in capsys.readouterr().err
    assert cli.main(["describe", "there", "-n", "research"]) == Exit.OK
    assert "kubectl -n research describe node" in capsys.readouterr().out
    assert cli.main(["scale", "there", "-n", "research", "--workers", "1"]) == Exit.USAGE
    assert "tfgpu suspend there -n research, then scale, then tfgpu resume there -n research" in capsys.readouterr().err


def test_what_is_after_the_dashes_are_the_arguments_of_a_script(capsys: Output) -> None:
    assert cli.main(["submit", SCRIPT, "--dry-run", "--", "--epochs", "2", "--name", "a b"]) == Exit.OK
    _, made = yaml.safe_load_all(capsys.readouterr().out)
    assert made["spec"]["trainer"]["args"] == ["--epochs", "2", "--name", "a b"]


MODULE = str(ROOT / "trainer_image/src/tfgpujob_trainer/builtin/digits.py")
SCRIPT = str(ROOT / "tests/trainer/plain_script.py")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["submit", "gone.yaml"], Exit.NOT_FOUND, "No such file"),
        (["submit", "gone.py", "--batch", "1"], Exit.NOT_FOUND, "gone.py"),
        (["submit", "gone.py"], Exit.NOT_FOUND, "gone.py"),
        (["submit", MODULE], Exit.USAGE, "add --batch"),
        (["submit", __file__, "--batch", "1"], Exit.USAGE, "has no function model() and data(), and calls no fit"),
        (["submit", SCRIPT, "--batch", "1"], Exit.USAGE, "--batch is given, and"),
        (["submit", SCRIPT, "--epochs", "1"], Exit.USAGE, "remove it: the script says it in fit()"),
        (["submit", SCRIPT, "--param", "a=1"], Exit.USAGE, "--param is given, and"),
        (["submit", MODULE, "--", "--a"], Exit.USAGE, "takes no arguments; use --param, which goes to those"),
        (["submit", "job.yaml", "--", "--a"], Exit.USAGE, "--a after the file is for a Python file; write a script's"),
        (["submit", "job.yaml", "--batch", "1"], Exit.USAGE, "--batch is for a Python file"),
        (["submit", "job.yaml", "--workers", "1"], Exit.USAGE, "--workers is for a Python file"),
        (["submit", MODULE, "--batch", "1", "--name", "A", "--dry-run"], Exit.USAGE, "'A' is not a valid name"),
        (["submit", "x.py", "--batch", "1", "--param", "a"], Exit.USAGE, "write it as --param a=VALUE"),
        (["submit", "x.py", "--batch", "1", "--param", "shape=[1"], Exit.USAGE, "--param shape: '[1' is no YAML"),
        (["submit", "x.py", "--batch", "1", "--param", "rate=.nan"], Exit.USAGE, "any other text in quotes"),
        (["describe", "nobody"], Exit.NOT_FOUND, "see tfgpu list"),
        (["logs", "nobody"], Exit.NOT_FOUND, "see tfgpu list"),
        (["wait", "nobody"], Exit.NOT_FOUND, "nobody"),
        (["list", "--context", "elsewhere"], Exit.CLUSTER, "no cluster"),
        (["submit", str(EXAMPLE), "-n", "nowhere"], Exit.NOT_FOUND, "name one that is there with -n"),
        (["wait", "nobody", "--timeout", "soon"], Exit.USAGE, "'soon' is not a number"),
        (["submit", "x.py", "--batch", "many"], Exit.USAGE, "'many' is not a whole number"),
        (["describe", "team/digits"], Exit.USAGE, "write its name alone, and its namespace with -n"),
        (["list", "-n", "team?x="], Exit.USAGE, "'team?x=' is no name of a namespace; kubectl get namespaces"),
        (["delete", ""], Exit.USAGE, "'' is no name of a job"),
        (["list", "-n", "nowhere"], Exit.OK, "there is no job in the namespace nowhere; -A shows those of all"),
        (["top", "-n", "nowhere"], Exit.OK, "no job is running"),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], code: Exit, line: str, live: LiveCluster, capsys: Output) -> None:
    assert line in typed(capsys, *arguments, code=code).err
