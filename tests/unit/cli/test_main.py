"""The command line itself: one line and an exit code, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests import references
from tests.unit.cli.typed import typed

from tfgpujob.cli import main as cli
from tfgpujob.cli import verbs
from tfgpujob.cli.output import Format, StatusLine, coloured, data, sentences_table, size, table
from tfgpujob.exits import Exit
from tfgpujob.units import counted, duration, hours


def test_every_verb_that_is_listed_loads_and_has_help() -> None:
    context = click.Context(cli.tfgpu)
    for verb in cli.tfgpu.list_commands(context):
        command = cli.tfgpu.get_command(context, verb)
        assert command is not None
        assert command.get_short_help_str()


def test_a_file_beside_the_verbs_is_a_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else lists them: neither the command line nor its help nor the reference."""
    (tmp_path / "greet_twice.py").write_text(
        "import click\n"
        "from tfgpujob.cli.verbs import Heading\n"
        "PLACE = Heading.IN_A_CLUSTER, 15\n"
        "@click.command()\n"
        "def command() -> None:\n"
        '    """Greet, and greet again."""\n'
        "    click.echo('hello hello')\n"
    )
    monkeypatch.setattr(verbs, "__path__", [*verbs.__path__, str(tmp_path)])
    assert cli.main(["greet-twice"]) == Exit.OK
    shown = typed(capsys, "--help").out
    assert shown.startswith("hello hello\n")
    assert shown.index("submit") < shown.index("greet-twice  Greet, and greet again.") < shown.index("list ")
    assert "### greet-twice" in references.of_command_line()


def test_no_two_verbs_have_one_place() -> None:
    places = [verbs.module(name).PLACE for name in verbs.names()]
    assert len({*places}) == len(places)
    assert list(verbs.by_heading()) == [*verbs.Heading]


def test_the_tool_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == Exit.OK
    assert capsys.readouterr().out.startswith("Usage: tfgpu")


def test_the_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = typed(capsys, "--help", code=0).out
    assert all(f"{int(code)}" in shown for code in Exit)


def test_the_list_of_verbs_cuts_no_sentence_short(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([])
    _usage, *others = capsys.readouterr().out.splitlines()
    assert not [line for line in others if "..." in line]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fly"], "No such command 'fly'; see"),
        (["rnu"], "No such command 'rnu' (did you mean run?)"),
        (["status"], "No such command 'status' (did you mean describe?)"),
        (["-n", "team", "list"], "No such option '-n'; write it after the command; see"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["completion"], "Missing argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (said,) = typed(capsys, *arguments, code=Exit.USAGE).err.strip().splitlines()
    assert said.startswith("tfgpu: ")
    assert line in said
    assert said.endswith("--help")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0.00"), (72, "0.02"), (12600, "3.5"), (360_000, "100")])
def test_hours_have_the_digits_that_matter(seconds: int, text: str) -> None:
    assert hours(seconds) == text


def test_one_is_not_several() -> None:
    assert (counted(1, "GPU"), counted(0, "GPU"), counted(2, "GPU")) == ("1 GPU", "0 GPUs", "2 GPUs")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_that_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"_TFGPU_COMPLETE={shell}_complete" in typed(capsys, "completion", shell, code=0).out


def test_it_starts_without_the_kubernetes_client_kopf_or_the_models() -> None:
    code = "import sys, tfgpujob.cli.main; print([m for m in ('kopf', 'kubernetes', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_table_is_aligned_also_with_colours() -> None:
    red = click.style("a", fg="red")
    assert click.unstyle(table(["NAME", "READY"], [[red, "1/1"], ["longer", "0/1"]])).splitlines() == [
        "NAME     READY",
        "a        1/1",
        "longer   0/1",
    ]


def test_no_colours_but_on_a_terminal() -> None:
    assert coloured("text", "red") == "text"


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StatusLine()
    progress.show("12 of 240")
    progress.clear()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_sentences_stay_in_their_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [["start", "All pods start at once. " * 5]]
    assert len(sentences_table(["ABOUT", "WHAT"], rows).splitlines()) == 2
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, first, *others = sentences_table(["ABOUT", "WHAT"], rows).splitlines()
    assert len(others) == 2
    assert all(len(line) <= 50 for line in (first, *others))
    assert all(line[:8].isspace() and line[8] != " " for line in others)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (185, "3m05s"), (7800, "2h10m"), (356400, "4d03h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes() -> None:
    assert [size(n) for n in (512, 1536, 3 * 1024**3)] == ["512 B", "1.5 KiB", "3 GiB"]


def test_data_for_programs() -> None:
    value = {"b": 1, "a": ["ü"]}
    assert data(value, Format.YAML) == "b: 1\na:\n- ü"
    assert data({"train.py": "a = 'ü'\n\nb = 1\n"}, Format.YAML) == "train.py: |\n  a = 'ü'\n\n  b = 1"
    assert data(value, Format.JSON) == '{\n  "b": 1,\n  "a": [\n    "ü"\n  ]\n}'


def test_a_pipe_that_is_closed_before_it_is_written_to_is_no_failure() -> None:
    """As under `tfgpu … | head -1`."""
    example = Path(__file__).resolve().parents[3] / "examples/digits-multiworker.yaml"
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "tfgpujob.cli", "explain", str(example)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (Exit.OK, "")


def test_an_option_of_the_scripts_own_is_told_to_go_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "No such option '--epochs'; the script's own options go after --; tfgpu submit has one of this name; see"
        in typed(capsys, "run", "train.py", "--local", "--epochs", "5", code=Exit.USAGE).err
    )
    assert "after --;" not in typed(capsys, "run", "train.py", "--local", "--worker", "2", code=Exit.USAGE).err


def test_a_file_in_the_place_of_a_verb_is_told_what_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(did you mean run train.py --local?)" in typed(capsys, "train.py", code=Exit.USAGE).err


def test_interrupt_while_a_verb_is_loaded_ends_without_a_word(tmp_path: Path) -> None:
    """pydantic makes a SchemaError of the KeyboardInterrupt, which was shown with a hundred lines of traceback."""
    (tmp_path / "slow.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise ValueError('no schema')\n"
    )
    code = "import sys; from tfgpujob.cli import main, verbs; verbs.__path__.append(sys.argv[1]); main.main(['slow'])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
