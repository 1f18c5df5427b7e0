"""The verbs when something is in the way: no cluster, an interrupt, what can't happen any more."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.scenario import job
from tests.machine import PATIENCE
from tests.unit.cli.typed import Output, submit, typed

from tfgpujob.cli import main as cli
from tfgpujob.describe import facts
from tfgpujob.exits import Exit


def test_what_cannot_happen_any_more_is_said(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    submit(tmp_path, "through", worker=1)
    live.until_running("through")
    assert "no such replica of through has printed anything" in typed(capsys, "logs", "through", "--index", "7").err
    live.finish("through-worker-0", 0)
    assert cli.main(["wait", "through", "--timeout", str(PATIENCE)]) == Exit.OK
    for verb in ("suspend", "resume"):
        capsys.readouterr()
        assert typed(capsys, verb, "through").out == "through has finished already\n"


def test_nobody_looks_at_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    with live_cluster(tmp_path, operator=False) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        submit(tmp_path, "waits", worker=1)
        assert "operator" not in typed(capsys, "list").err, "it may not have had the time"
        monkeypatch.setattr(facts, "AWAY_SECONDS", -1)
        assert "the operator has not looked at waits: it is not running" in typed(capsys, "list").err


@pytest.mark.parametrize(
    ("kubeconfig", "why"),
    [("/no/such/file", "there is no /no/such/file"), ("", "KUBECONFIG is not set, and there is no ~/.kube/config")],
)
def test_no_kubeconfig(
    kubeconfig: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["list"]) == Exit.CLUSTER
    assert f"no cluster: {why}; set KUBECONFIG to the file that leads to your cluster" in capsys.readouterr().err
    # A mistake in the file comes before the missing cluster.
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "{apiVersion: tfgpu.dev/v1alpha1, kind: TFGPUJob, metadata: {name: bad}, spec: {strategi: Mirrored}}"
    )
    assert "spec.strategi" in typed(capsys, "submit", str(bad), "--dry-run", code=Exit.USAGE).err


def test_a_cluster_that_does_not_answer(
    live: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    config = yaml.safe_load(live.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert "is KUBECONFIG right?" in typed(capsys, "list", code=Exit.CLUSTER).err


def test_names_of_jobs_are_completed(
    live: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    submit(tmp_path, "complete-me", worker=1)
    capsys.readouterr()
    monkeypatch.setenv("_TFGPU_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "tfgpu describe comp")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        cli.tfgpu.main([], prog_name="tfgpu")
    assert capsys.readouterr().out == "plain,complete-me\n"


@pytest.mark.slow
def test_interrupted_while_following(live: LiveCluster, tmp_path: Path) -> None:
    submit(tmp_path, "followed", worker=1)
    live.until_running("followed")
    live.say("followed-worker-0", "begins")
    # What is started in a shell's background begins with the signal ignored, and so do its children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heed}; import sys; from tfgpujob.cli.main import main; sys.exit(main())"]
    following = subprocess.Popen(
        [*command, "logs", "followed", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "worker-0 | begins\n"
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=PATIENCE)
    assert (following.returncode, said.strip()) == (Exit.INTERRUPTED, "")


@pytest.mark.parametrize(
    ("namespace", "flags", "line"),
    [
        ("theirs", ["-n", "mine"], "puts stray into the namespace theirs, and -n says mine; keep one of them"),
        (5, [], "metadata.namespace: 5 is a number"),
    ],
)
def test_a_job_goes_where_its_file_and_its_user_say(
    namespace: object, flags: list[str], line: str, live: LiveCluster, tmp_path: Path, capsys: Output
) -> None:
    made = job("stray", worker=1)
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({**made, "metadata": {**made["metadata"], "namespace": namespace}})
    )
    assert line in typed(capsys, "submit", str(tmp_path / "job.yaml"), *flags, code=Exit.USAGE).err


def test_every_job_of_a_file_is_submitted(live: LiveCluster, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "jobs.yaml"
    jobs = [job(f"of-many-{i}", worker=1) for i in range(2)]
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": jobs}))
    assert re.findall(r"default/(\S+) is created", typed(capsys, "submit", str(file)).out) == ["of-many-0", "of-many-1"]
    live.until_running("of-many-1")
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}}
    file.write_text(yaml.safe_dump_all([code, *jobs]))
    assert cli.main(["submit", str(file)]) == Exit.USAGE
    assert "holds 2 jobs and the ConfigMap code, which belongs to a job" in capsys.readouterr().err


def test_top_goes_on_when_the_server_is_away_for_a_while(
    live: LiveCluster, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(tmp_path, "watched", worker=1)
    live.until_running("watched")
    looks: list[float] = []

    def between_two_looks(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            live.do(lambda: setattr(live.front, "outage", 2))
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("tfgpujob.cli.verbs.top.time.sleep", between_two_looks)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    capsys.readouterr()
    shown = typed(capsys, "top", "watched", code=Exit.INTERRUPTED)
    assert (shown.out.count("worker-0"), shown.err.count("not known now: apiserver is shutting down")) == (2, 2)
    # What will not pass by itself, and a server that does not answer from the first, ends it.
    live.do(lambda: setattr(live.front, "outage", 1))
    assert cli.main(["top"]) == Exit.CLUSTER
    assert cli.main(["top", "nobody"]) == Exit.NOT_FOUND


def test_a_line_that_does_not_end_comes_in_pieces_and_is_whole_again(
    live: LiveCluster, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfgpujob.client.logs.LONGEST_LINE", 10)
    submit(tmp_path, "endless", worker=2)
    live.until_running("endless")
    live.say("endless-worker-0", "." * 95, "short")
    live.say("endless-worker-1", "other")
    capsys.readouterr()
    assert typed(capsys, "logs", "endless").out == f"worker-0 | {'.' * 95}\nworker-0 | short\nworker-1 | other\n"
