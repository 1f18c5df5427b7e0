"""The folder that a script runs in where that of its code can't be written to, as in a pod."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import fsspec
import pytest
from tests.trainer.harness import Launcher

from tfgpujob_contract.pod import PLACED, SCRIPT_DIR
from tfgpujob_contract.trainer_config import Output, TrainerConfig
from tfgpujob_trainer.contract.environment import CODE_DIRECTORY, Environment
from tfgpujob_trainer.script import folder as folders
from tfgpujob_trainer.script.folder import (
    adopt,
    copy_to_store,
    enter,
    kept,
    place,
    share_the_firsts,
    written,
)


@pytest.fixture
def code(tmp_path):
    """As a ConfigMap is mounted: each name is a link into a folder of this moment."""
    data = tmp_path / "code/..2026_11_26"
    (data / "net").mkdir(parents=True)
    (data / "train.py").write_text("import net.layers")
    (data / "net/layers.py").write_text("units = 1")
    (tmp_path / "code/..data").symlink_to(data.name)
    for name in ("train.py", "net"):
        (tmp_path / "code" / name).symlink_to(f"..data/{name}")
    return tmp_path / "code"


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != PLACED)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_the_code_is_copied_and_may_be_written_to(code, tmp_path):
    (code / "__pycache__").mkdir()
    (code / "__pycache__/net.pyc").write_text("")
    (code / "empty").mkdir()
    place(code, tmp_path / "files")
    assert contents(tmp_path / "files") == {"train.py": "import net.layers", "net/layers.py": "units = 1"}
    assert not any(path.is_symlink() for path in (tmp_path / "files").rglob("*"))
    assert (tmp_path / "files/empty").is_dir()
    for name in (f".{PLACED}.0eef4dbc", "net/.layers.py.0eef4dbc"):
        (tmp_path / "files" / name).write_text("a process was killed while it wrote it")
    assert written(tmp_path / "files") == []
    (tmp_path / "files/.notes.0eef4dbc").write_text("")
    assert written(tmp_path / "files") == [".notes.0eef4dbc"]


def test_changed_code_replaces_the_code_before_and_nothing_of_the_script(code, tmp_path):
    files = tmp_path / "files"
    (code / "settings.json").write_text("{}")
    (code / "old").mkdir()
    (code / "old/model.py").write_text("old")
    place(code, files)
    (files / "settings.json").write_text('{"written": 1}')
    (files / "model.keras").write_text("weights")
    (files / "net/notes.txt").write_text("notes")
    (code / "..data/net/layers.py").write_text("units = 2")
    for name in ("settings.json", "model.keras"):
        (code / name).write_text("of the code")
    (code / "old/model.py").unlink()
    (code / "old").rmdir()
    place(code, files)
    assert contents(files) == {
        "train.py": "import net.layers",
        "net/layers.py": "units = 2",
        "settings.json": '{"written": 1}',
        "model.keras": "weights",
        "net/notes.txt": "notes",
    }
    assert not (files / "old").exists()
    assert written(files) == ["model.keras", "settings.json", "net/notes.txt"]
    place(code, files)
    assert contents(files)["model.keras"] == "weights"


def test_large_code_is_linked_file_by_file(code, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "COPIED_BYTES", 100)
    files = tmp_path / "files"
    (code / "data").mkdir()
    (code / "data/large.npy").write_text("x" * 200)
    place(code, files)
    assert (files / "data/large.npy").readlink() == code / "data/large.npy"
    assert not (files / "train.py").is_symlink()
    (files / "data/made.npy").write_text("made")
    assert written(files) == ["data/made.npy"]
    (code / "data/large.npy").write_text("small")
    place(code, files)
    assert not (files / "data/large.npy").is_symlink()


def test_a_folder_of_very_many_files_is_one_link(code, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "LISTED", 4)
    (code / "images").mkdir()
    for number in range(5):
        (code / f"images/{number}.png").write_text("")
    place(code, tmp_path / "files")
    assert (tmp_path / "files/images").readlink() == code / "images"
    assert written(tmp_path / "files") == []


def test_what_another_program_removes_meanwhile_is_left_out(tmp_path, monkeypatch):
    copy, is_of_a_tool = shutil.copyfile, folders._is_of_a_tool

    def copied(source, target):
        Path(source).unlink()
        copy(source, target)

    def looked_at(where):
        shutil.rmtree(where)
        return is_of_a_tool(where)

    (tmp_path / "code/cache").mkdir(parents=True)
    (tmp_path / "code/train.py").touch()
    monkeypatch.setattr(shutil, "copyfile", copied)
    monkeypatch.setattr(folders, "_is_of_a_tool", looked_at)
    place(tmp_path / "code", tmp_path / "files")
    assert [path.name for path in (tmp_path / "files").iterdir()] == [PLACED]


def test_code_that_holds_the_folder_or_links_to_itself_comes_to_an_end(code):
    (code / "again").symlink_to(".")
    place(code, code / SCRIPT_DIR)
    place(code, code / SCRIPT_DIR)
    assert sorted(path.name for path in (code / SCRIPT_DIR).iterdir()) == [PLACED, "again", "net", "train.py"]


def test_a_worker_adopts_what_the_first_one_wrote(code, tmp_path):
    first, second = tmp_path / "files", tmp_path / "second"
    adopt(first, second)  # nothing, at the first start
    place(code, first)
    (first / "best.keras").write_text("best")
    (first / "train.py").write_text("written by the script")
    second.mkdir()
    (second / "best.keras").write_text("older")
    (second / "worker-1.txt").write_text("own")
    adopt(first, second)
    place(code, second)
    assert contents(second) == {
        "best.keras": "best",
        "train.py": "written by the script",
        "worker-1.txt": "own",
        "net/layers.py": "units = 1",
    }


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (Output(claim="runs"), "stays in the claim runs"),
        (Output(), "without output.claim, what it writes there goes with the pod"),
        (Output(store="s3://b/x/"), "at the end a copy of it to s3://b/x/files"),
    ],
)
def test_it_is_said_what_becomes_of_the_files(output, words):
    assert words in kept(output)


@pytest.fixture
def here(code, tmp_path, monkeypatch):
    """In the folder of the code, which is not to be written to, with a folder for temporary files."""
    for name in ("PYTHONDONTWRITEBYTECODE", "TMPDIR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [str(code), *sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode == os.W_OK and Path(path) == code))
    monkeypatch.chdir(code)
    return code


def test_each_worker_has_a_folder_of_its_own(here, tmp_path):
    settings = TrainerConfig(entrypoint="train.py", output=Output(directory=str(tmp_path / "output")))
    peers = ("a:1", "b:1")
    first = enter(settings, Environment(code_directory=here, peers=peers))
    assert first.code_directory == tmp_path / "output/files" == Path.cwd()
    assert sys.path[0] == str(Path.cwd())
    (Path.cwd() / "best.keras").write_text("best")
    os.chdir(here)
    second = enter(settings, Environment(code_directory=here, peers=peers, index=1))
    assert second.code_directory.parent == tmp_path
    assert (second.code_directory / "best.keras").read_text() == "best"
    assert enter(settings, Environment(code_directory=here, peers=peers, index=1)) == second
    os.chdir(tmp_path)  # a job may name another folder to work in
    enter(settings, Environment(code_directory=here, peers=peers))
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("claim", [None, "runs"])
def test_servers_write_their_part_of_a_checkpoint_where_the_chief_does(claim, here, tmp_path):
    output = Output(directory=str(tmp_path / "output"), claim=claim)
    settings = TrainerConfig(entrypoint="train.py", output=output)
    server = Environment(code_directory=here, strategy="ParameterServer", role="ps")
    assert server.serves
    entered = enter(settings, server)
    share_the_firsts(settings, entered, here)
    assert Path.cwd() == (entered.code_directory if claim is None else tmp_path / "output/files")


def test_a_folder_of_ones_own_stays_the_scripts(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = Environment(code_directory=code)
    assert enter(TrainerConfig(entrypoint="train.py"), env) is env
    assert Path.cwd() == tmp_path
    assert Environment().code_directory == CODE_DIRECTORY


def test_on_one_machine_the_first_worker_has_the_scripts_folder_and_the_others_have_copies(code, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(code), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    settings = TrainerConfig(entrypoint="train.py", output=Output(directory=str(code / "runs/a")))
    envs = [
        Environment(code_directory=code, peers=("a:1", "b:1"), index=i, files_directory=code / f"runs/a/.tfgpu/{i}")
        for i in range(2)
    ]
    for name in ("runs/a/.tfgpu", "runs/tuesday", "venv"):
        (code / name).mkdir(parents=True)
    for name in ("runs/a/run.json", "runs/tuesday/log.csv", "venv/pyvenv.cfg"):
        (code / name).write_text("large")
    for _ in range(2):  # a resumed run, too, begins with the files of the first worker
        monkeypatch.chdir(code)
        assert enter(settings, envs[0]) is envs[0]
        (code / "best.keras").write_text("of the first")
        second = enter(settings, envs[1]).code_directory
        assert Path.cwd() == second == envs[1].files_directory
        assert sys.path[0] == str(second)
        sys.path[0] = str(code)
        assert (second / "best.keras").read_text() == "of the first"
        folders = ("net", "runs", "runs/a", "runs/tuesday", "venv")
        assert [name for name in folders if (second / name).is_symlink()] == ["runs/a", "venv"]
        (second / "runs/today").mkdir()
        for name in ("best.keras", "train.py", "runs/tuesday/log.csv"):
            (second / name).write_text("of the second")
    assert (code / "train.py").read_text() == "import net.layers"
    assert (code / "best.keras").read_text() == "of the first"
    assert (code / "runs/tuesday/log.csv").read_text() == "large"
    assert not (code / "runs/today").exists()


def test_on_one_machine_servers_write_where_the_chief_does(code, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    monkeypatch.chdir(code)
    settings = TrainerConfig(entrypoint="train.py", output=Output(directory=str(tmp_path / "output"), claim="runs"))
    server = Environment(
        code_directory=code, strategy="ParameterServer", role="ps", files_directory=tmp_path / "ps-0.files"
    )
    share_the_firsts(settings, enter(settings, server), code)
    assert Path.cwd() == code


def test_an_object_store_gets_a_copy(here, tmp_path):
    output = Output(directory=str(tmp_path / "output"), store="memory://run")
    settings = TrainerConfig(entrypoint="train.py", output=output)
    env = enter(settings, Environment(code_directory=here))
    Path("model").mkdir()
    Path("model/weights").write_text("weights")
    Path("net/notes.txt").write_text("notes")
    copy_to_store(settings, env)
    store = fsspec.filesystem("memory")
    assert store.find("/run") == ["/run/files/model/weights", "/run/files/net/notes.txt"]
    assert store.cat_file("/run/files/model/weights") == b"weights"


SCRIPT = """
import os
import signal
from pathlib import Path

import keras
import numpy as np

import units

keras.utils.set_random_seed(1)
x = np.loadtxt("rows.csv", delimiter=",")
worker = int(os.environ["TFGPU_REPLICA_INDEX"])
assert Path(__file__).resolve().parent == Path.cwd() == Path(units.__file__).parent


class Happens(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            Path("first.txt").write_text(f"worker {worker}")
        if epoch == 1 and "STOP" in os.environ:
            os.kill(os.getppid(), signal.SIGTERM)


model = keras.Sequential([keras.layers.Dense(units.UNITS)])
model.compile("sgd", "mse")
os.makedirs("out", exist_ok=True)
callbacks = [
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.ModelCheckpoint("best.keras"),
    keras.callbacks.TensorBoard("logs"),
    Happens(),
]
model.fit(x, x[:, :1], batch_size=4, epochs=4, verbose=0, callbacks=callbacks)
model.save("model.keras")
assert np.array_equal(keras.saving.load_model("model.keras").predict(x), model.predict(x))
Path(f"out/{worker}.txt").write_text("done")
assert Path("best.keras").exists()
print("rows", Path("log.csv").read_text().split("\\n")[1:-1], Path("first.txt").read_text(), Path.cwd(), flush=True)
"""


@pytest.mark.deep
def test_a_script_of_read_only_code_saves_stops_and_goes_on(launch: Launcher):
    code, output = launch.directory / "code", launch.directory / "output"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (code / "units.py").write_text("UNITS = 1\n")
    (code / "rows.csv").write_text("".join(f"{i},{i * i / 16}\n" for i in range(16)))
    before = {path.name for path in code.iterdir()}
    config = {"entrypoint": "train.py", "output": {"directory": str(output), "claim": "runs"}}
    bound = 'mount --bind $0 $0 && mount -o remount,bind,ro $0 && cd $0 && exec "$@"'

    def attempt(number: int, **more: str) -> list[tuple[int, str]]:
        environments = {}
        for worker in range(2):
            temporary = launch.directory / f"tmp-{number}-{worker}"
            temporary.mkdir()
            own = {"TFGPU_CODE_DIR": str(code), "TFGPU_ATTEMPT": str(number), "TMPDIR": str(temporary)}
            environments[worker] = {**own, **more}
        prefix = ("unshare", "--mount", "sh", "-c", bound, str(code))
        return [(task.wait(), task.log) for task in launch.start_workers(config, env=environments, prefix=prefix)]

    stopped = attempt(1, STOP="1")
    assert [status for status, _ in stopped] == [143, 143], stopped
    assert "files and folders that the script wrote: best.keras, first.txt, log.csv, logs/" in stopped[0][1]
    done = attempt(2)
    assert [status for status, _ in done] == [0, 0], done[0][1] + done[1][1]
    rows = [next(line for line in log.splitlines() if line.startswith("rows ")) for _, log in done]
    # The second worker is new, and has what the first one wrote before the stop.
    assert [row.count("worker 0") for row in rows] == [1, 1]
    assert [row.split("]")[0] for row in rows] == [rows[0].split("]")[0]] * 2
    assert [text[:2] for text in rows[0].split("'")[1::2]] == ["0,", "1,", "2,", "3,"]
    files = output / SCRIPT_DIR
    assert rows[0].endswith(str(files))
    assert not rows[1].endswith(str(files))
    assert {"best.keras", "model.keras", "log.csv", "logs", "out"} <= {path.name for path in files.iterdir()}
    assert [path.name for path in (files / "out").iterdir()] == ["0.txt"]
    assert {path.name for path in code.iterdir()} == before
    assert f"{files} has 6 files and folders that the script wrote" in done[0][1]
    assert "stays in the claim runs" in done[0][1]
