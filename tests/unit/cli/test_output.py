"""What others wrote, a terminal shows and does not obey."""

from __future__ import annotations

import io

import pytest
import yaml

from tfgpujob.cli import main as cli
from tfgpujob.cli.output import Format, StatusLine, data, log_line, table
from tfgpujob.exits import CliError, Exit
from tfgpujob.printable import printable

RED, PLAIN, TITLE, UP = "\x1b[31m", "\x1b[0m", "\x1b]0;owned\x07", "\x1b[1A"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größer\t界\nnext", "größer\t界\nnext"),
        (TITLE, "\\x1b]0;owned\\x07"),
        (f"{RED}a\x9b2J\x7f", "\\x1b[31ma\\x9b2J\\x7f"),
        ("abc\u202edef", "abc\\u202edef"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML])
def test_data_for_programs_is_what_it_was_and_nothing_that_a_terminal_obeys(form: Format) -> None:
    value = {"a": f"{TITLE}\x9b2J\x7f\u202eü", "b": "größer\nnext\n", "c": [1, None]}
    text = data(value, form)
    assert yaml.safe_load(text) == value
    assert printable(text) == text
    assert "größer" in data({"b": "größer"}, form)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r50%\r100%\r", "100%"),
        (f"{RED}error", f"{RED}error{PLAIN}"),
        (f"a{UP}b", "a\\x1b[1Ab"),
        ("loss: 0.5", "loss: 0.5"),
    ],
)
def test_a_line_of_a_log_keeps_its_colours_to_itself(text: str, shown: str) -> None:
    assert log_line(text).replace(PLAIN, "") == shown.replace(PLAIN, "")
    assert log_line(text).endswith(PLAIN) == (RED in text)


def test_cells_stay_cells() -> None:
    assert table(["A", "B"], [[f"{RED}x{PLAIN}", f"y\n{UP}z"]]).splitlines() == [
        "A   B",
        f"{RED}x{PLAIN}   y \\x1b[1Az",
    ]


def test_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CliError(f"the webhook says {TITLE}")

    monkeypatch.setattr(cli.tfgpu, "main", refuse)
    assert cli.main([]) == Exit.USAGE
    assert capsys.readouterr().err == "tfgpu: the webhook says \\x1b]0;owned\\x07\n"


def test_progress_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "12")
    terminal = Terminal()
    StatusLine(terminal).show("Pulling:\nback-off pulling")
    assert terminal.getvalue() == "\r\x1b[KPulling: ba"
