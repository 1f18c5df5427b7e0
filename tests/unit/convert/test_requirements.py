"""A requirements file, made lines of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfgpujob.convert.requirements import requirement_lines

FILE = """\
# what we need
einops==0.8.1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb   # both builds

--find-links wheels
mine @ https://git.example.com/mine.whl#sha256=cc
rich
"""


def test_lines_that_go_on_are_one_and_comments_are_none(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(FILE)
    assert requirement_lines(file) == [
        "einops==0.8.1 --hash=sha256:aa --hash=sha256:bb",
        "--find-links wheels",
        "mine @ https://git.example.com/mine.whl#sha256=cc",
        "rich",
    ]


@pytest.mark.parametrize(
    "line", ["-r other.txt", "-rother.txt", "-c held.txt", "--requirement=other.txt", "--constraint held.txt"]
)
def test_a_line_that_names_another_file_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"einops\n{line}\n")
    with pytest.raises(ValueError, match=f"has the line {line}"):
        requirement_lines(file)
