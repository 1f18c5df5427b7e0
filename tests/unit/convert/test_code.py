"""A Python file as a job: its name, and what is put beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfgpujob.api import JobSpec
from tfgpujob.cli.verbs.run import _job_of_script
from tfgpujob.convert.code import job_name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("train.py", "train"),
        ("my_train.py", "my-train"),
        ("01_train.py", "job-01-train"),
        ("_train_.py", "train"),
        ("Train v2.1.py", "train-v2-1"),
        ("entraînement.py", "entra-nement"),
        ("数据.py", "job"),
        (f"{'long_' * 12}.py", "long-" * 9 + "lon"),
    ],
)
def test_any_name_of_a_file_makes_a_valid_name_of_a_job(file: str, name: str, tmp_path: Path) -> None:
    """Here, where no ConfigMap is made, no name of a script is refused."""
    assert job_name(Path(file)) == name
    (tmp_path / file).write_text("model.fit(x)\n")
    made = _job_of_script(tmp_path / file, 2, 1, None, ())
    assert isinstance(made.spec, JobSpec)
    assert made.job["metadata"]["name"] == name
