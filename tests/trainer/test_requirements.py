"""trainer.requirements: real pip, and wheels that the tests create; the only index is one without a server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.trainer.harness import free_ports, launcher

from tfgpujob_trainer import main
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, NotFetchedError
from tfgpujob_trainer.supervise import requirements

OFFLINE = ("--no-index", "--find-links wheels")


def wheel(folder: Path, name: str, version: str, needs: str = "", module: str = "") -> Path:
    """A package with one module, which has VERSION."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    files = {
        f"{module or name}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": about,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def sha256(file: Path) -> str:
    return f"--hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def prepare(code: Path, *lines: str, **variables: str) -> Path:
    settings = config.parse(
        {
            "entrypoint": "digits",
            "globalBatchSize": 8,
            "epochs": 1,
            "requirements": list(lines),
            "output": {"directory": str(code.parent / "output")},
        }
    )
    found = requirements.prepare(settings, Environment(code_directory=code), {**os.environ, **variables})
    assert found is not None
    return found


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".dist-info")}


def test_what_is_asked_for_and_what_that_needs_is_installed_and_kept(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(code / "wheels", "tinyone", "1.0", needs="tinytwo>=2")
    wheel(code / "wheels", "tinytwo", "2.0", needs=f"numpy=={version('numpy')}")
    (code / "requirements.txt").write_text("--no-index\n--find-links wheels\ntinyone\n")
    folder = prepare(code, "-r requirements.txt")
    assert folder.parent == code.parent / "output/requirements"
    assert names(folder) == {"tinyone", "tinytwo"}
    sees = requirements.with_packages(os.environ, folder)
    program = "import tinyone, tinytwo; print(tinyone.VERSION, tinytwo.VERSION)"
    assert subprocess.check_output([sys.executable, "-c", program], env=sees, text=True) == "1.0 2.0\n"

    # The next attempt needs neither pip nor the index.
    monkeypatch.setattr(requirements._Pip, "_run", lambda *_: pytest.fail("pip runs again"))
    assert prepare(code, "-r requirements.txt") == folder


def test_a_wheel_beside_the_script_is_installed_as_submit_asks_for_it(code: Path) -> None:
    wheel(code, "tinyone", "1.0")
    assert names(prepare(code, "--no-index", "--find-links .", "tinyone==1.0")) == {"tinyone"}


@pytest.mark.parametrize("change", ["a line", "the file", "a wheel", "a source"])
def test_whatever_decides_what_is_installed_is_in_the_name_of_the_folder(code: Path, change: str) -> None:
    wheel(code / "wheels", "tinyone", "1.0")
    (code / "requirements.txt").write_text("tinyone\n")
    (code / "mine/src").mkdir(parents=True)
    (code / "mine/src/mine.py").write_text("VERSION = 1\n")
    lines = [*OFFLINE, "-r requirements.txt", "./mine[all]"]
    before = requirements._key(lines, code)
    if change == "a line":
        lines.append("tinyone==1.0")
    elif change == "the file":
        (code / "requirements.txt").write_text("tinyone==1.0\n")
    elif change == "a source":
        (code / "mine/build").mkdir()
        (code / "mine/build/left.py").write_text("by setuptools\n")
        assert requirements._key(lines, code) == before
        (code / "mine/src/mine.py").write_text("VERSION = 2\n")
    else:
        wheel(code / "wheels", "tinyone", "1.0", needs="numpy")
    assert requirements._key(lines, code) != before


def test_of_two_pods_that_prepare_at_the_same_time_one_folder_stays(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(code / "wheels", "tinyone", "1.0")
    install = requirements._Pip.install

    def overtaken(pip: requirements._Pip, packages: list[object], target: Path) -> None:
        faster = target.with_name(target.name[1:21])
        faster.mkdir()
        (faster / "of-the-other-pod").touch()
        install(pip, packages, target)  # type: ignore[arg-type]

    monkeypatch.setattr(requirements._Pip, "install", overtaken)
    folder = prepare(code, *OFFLINE, "tinyone")
    assert names(folder) == {"of-the-other-pod"}
    assert list(folder.parent.iterdir()) == [folder]


def test_what_a_killed_pod_has_left_half_done_is_removed(code: Path) -> None:
    root = code.parent / "root"
    root.mkdir()
    first = requirements._own_folder(root, "k" * 20)
    ended = first.rename(first.with_name(f"{first.name.rpartition('-')[0]}-{2**22 + 1}"))
    of_another = root / ".key-other-host-1"
    of_another.mkdir()
    assert {requirements._own_folder(root, "k" * 20), of_another} == set(root.iterdir())
    assert not ended.exists()


@pytest.mark.parametrize("asked", ["numpy<2", "needs-old-numpy"])
def test_what_contradicts_the_image_is_refused_with_both_versions(code: Path, asked: str) -> None:
    wheel(code / "wheels", "numpy", "1.0")
    wheel(code / "wheels", "needs_old_numpy", "1.0", needs="numpy<2")
    with pytest.raises(ConfigError) as refused:
        prepare(code, *OFFLINE, asked)
    assert "numpy<2" in str(refused.value)
    assert f"numpy=={version('numpy')}" in str(refused.value)
    assert "spec.image" in refused.value.fix


def test_whoever_needs_tensorflow_has_it_whatever_the_build_is_called(code: Path) -> None:
    """tensorflow beside tensorflow-cpu would hide it, and is 600 MB."""
    wheel(code / "wheels", "tensorflow", "99.0")
    wheel(code / "wheels", "tinytext", "1.0", needs="tensorflow>=2.20")
    assert names(prepare(code, *OFFLINE, "tinytext")) == {"tinytext"}


def test_a_package_by_another_name_that_would_hide_keras_is_refused(code: Path) -> None:
    wheel(code / "wheels", "keras_of_mine", "9.0", module="keras")
    with pytest.raises(ConfigError, match="brings a keras of its own"):
        prepare(code, *OFFLINE, "keras-of-mine")
    assert list((code.parent / "output/requirements").iterdir()) == []


def test_hashes_that_are_given_are_checked(code: Path) -> None:
    good, needed = wheel(code / "wheels", "tinyone", "1.0"), wheel(code / "wheels", "tinytwo", "1.0")
    folder = prepare(code, *OFFLINE, f"tinyone==1.0 {sha256(good)}", f"tinytwo==1.0 {sha256(needed)}")
    assert names(folder) == {"tinyone", "tinytwo"}
    with pytest.raises(ConfigError, match="tinyone") as other:
        prepare(code, *OFFLINE, f"tinyone==1.0 {sha256(needed)}")
    assert "lock" in other.value.fix
    with pytest.raises(ConfigError, match="tinytwo") as without:
        prepare(code, *OFFLINE, f"tinyone==1.0 {sha256(good)}", "tinytwo==1.0")
    assert "lock" in without.value.fix


def test_a_package_that_is_not_there_and_a_file_that_is_not_there_are_named(code: Path) -> None:
    (code / "wheels").mkdir()
    with pytest.raises(ConfigError, match="No matching distribution found for tinyone"):
        prepare(code, *OFFLINE, "tinyone")
    with pytest.raises(ConfigError, match=r"reqs\.txt: No such file"):
        prepare(code, "-r reqs.txt")


@pytest.mark.parametrize("line", ["-r base.txt  # ours", "-rbase.txt", "--requirement=base.txt", "-r a=b/../base.txt"])
def test_a_file_is_found_however_pip_lets_it_be_written(code: Path, line: str) -> None:
    (code / "a=b").mkdir()
    (code / "base.txt").write_text("tinyone\n")
    (code / "requirements.txt").write_text(f"{line}\n")
    expected = [(line, code), ("tinyone", code)]
    assert [(text, base.resolve()) for text, base in requirements._lines([line], code)] == expected
    assert requirements._absolute(line, code).split()[1].endswith("/base.txt")
    assert ("tinyone", code) in [
        (text, base.resolve()) for text, base in requirements._lines(["-r requirements.txt"], code)
    ]


@pytest.mark.parametrize(("text", "why"), [(b"\xff\xfe-", "UTF-8"), (b"-r ./requirements.txt\n", "names itself")])
def test_a_file_that_can_not_be_read_is_named(code: Path, text: bytes, why: str) -> None:
    (code / "requirements.txt").write_bytes(text)
    with pytest.raises(ConfigError, match=rf"requirements\.txt.* {why}"):
        prepare(code, "-r requirements.txt")


def test_a_folder_that_can_not_be_renamed_is_no_success(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise PermissionError

    monkeypatch.setattr(requirements._Pip, "resolve", lambda _: [])
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        prepare(code, *OFFLINE, "tinyone")


def test_an_index_that_does_not_answer_is_tried_again(code: Path) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}/simple"
    with pytest.raises(NotFetchedError, match="does not answer") as refused:
        prepare(code, "tinyone", PIP_INDEX_URL=nobody, PIP_RETRIES="1", PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="")
    assert refused.value.code >= 128
    assert "PIP_INDEX_URL" in refused.value.fix


MODULE = """
import keras, numpy as np, tinyone

def model():
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    return net

def data(split):
    print("tinyone", tinyone.VERSION, "in", tinyone.__file__)
    return np.ones((8, 2)), np.ones((8, 1))
"""


def test_the_program_sees_them(code: Path) -> None:
    """A whole run, of the process that the pod starts."""
    wheel(code / "wheels", "tinyone", "1.0")
    (code / "train.py").write_text(MODULE)
    job = {
        "entrypoint": "train.py",
        "globalBatchSize": 4,
        "epochs": 1,
        "requirements": [*OFFLINE, "tinyone"],
        "output": {"directory": str(code.parent / "output")},
    }
    kept = code.parent / "kept"
    with launcher(code.parent) as tasks:
        task = tasks.start(job, env={"TFGPU_CODE_DIR": str(code), "TFGPU_REQUIREMENTS_DIR": str(kept)}).ends(0)
        assert "requirements: installs tinyone 1.0" in task.log
        assert re.search(rf"tinyone 1\.0 in {kept}/\w{{20}}/tinyone/__init__\.py", task.log)
        wrong = tasks.start({**job, "requirements": [*OFFLINE, "numpy<2"]}, env={"TFGPU_CODE_DIR": str(code)}).ends(2)
        assert json.loads(wrong.termination_path.read_text())["cause"] == "BadConfig"


def test_a_folder_that_can_not_be_written_to_is_how_the_pod_ends(
    code: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code.parent / "file").touch()
    monkeypatch.setenv("TFGPU_REQUIREMENTS_DIR", str(code.parent / "file"))
    monkeypatch.setenv("TFGPU_TERMINATION_LOG", str(code.parent / "term"))
    monkeypatch.setenv("TFGPU_CODE_DIR", str(code))
    job = {"entrypoint": "digits", "globalBatchSize": 4, "epochs": 1, "requirements": ["tinyone"]}
    (code / "job.json").write_text(json.dumps({**job, "output": {"directory": str(code.parent / "output")}}))
    assert main.main(["--config", str(code / "job.json")]) == 1
    assert str(code.parent / "file") in json.loads((code.parent / "term").read_text())["message"]
    assert "Traceback" not in capsys.readouterr().err
