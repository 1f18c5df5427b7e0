"""`tfgpu convert`: Kubeflow TFJobs become TFGPUJobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tfgpujob.cli.output import Format, data
from tfgpujob.cli.verbs import Heading
from tfgpujob.convert import KIND, Conversion, Effect, Note, convert, is_tfjob, other_labels, tfjob_inside
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.job_file import read_objects
from tfgpujob.units import counted
from tfgpujob_contract.strategies import Strategy

PLACE: Final = Heading.FROM_TFJOB, 10

_SUFFIXES = {".yaml", ".yml", ".json"}


@click.command()
@click.argument("files", metavar="FILE_OR_FOLDER...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("-d", "--directory", type=click.Path(file_okay=False, path_type=Path), help="Write one file per input.")
@click.option(
    "--strategy",
    type=click.Choice([str(strategy) for strategy in Strategy]),
    default=str(Strategy.CUSTOM),
    show_default=True,
    help="What the programs are known to use.",
)
def command(files: Sequence[str], directory: Path | None, strategy: str) -> int:
    """Convert Kubeflow TFJobs, in files or whole folders.

    A comment above each job notes what has another meaning. Other objects are copied unchanged, with a comment if they
    select pods by labels of TFJobs. Exit code 2: a job was refused or a file is not YAML; all others were converted.
    """
    counts: Counter[Effect] = Counter()
    jobs = 0
    unread: list[CliError] = []
    inside: list[str] = []
    kinds: dict[str, None] = {}
    for file, under in _files(files):
        try:
            objects = read_objects(file)
            parts = [_converted(obj, Strategy(strategy)) for obj in objects]
        except CliError as error:
            click.echo(f"tfgpu: {error}", err=True)
            unread.append(error)
            continue
        kinds.update(dict.fromkeys(map(_kind, objects)))
        inside += [f"{file}: {obj.get('kind')}, {at}" for obj in objects if (at := tfjob_inside(obj)) is not None]
        for conversion, _ in parts:
            jobs += conversion is not None
            counts.update(note.effect for note in conversion.notes) if conversion else None
            _complain(file, conversion)
        text = "---\n".join(text for _, text in parts)
        if directory is None:
            click.echo(f"---\n{text}", nl=False)
        elif parts:
            target = directory / under
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    if not jobs and unread:
        return int(unread[0].code)
    if not jobs and inside:
        raise CliError(f"a TFJob is inside of another object: {inside[0]}", "put it into a file of its own", Exit.USAGE)
    if not jobs:
        only = f", only {', '.join(kinds)}" if kinds else ""
        fix = "name files of Kubeflow's TFJobs"
        raise CliError(f"there is no TFJob in {', '.join(files)}{only}", fix, Exit.NOT_FOUND)
    told = ", ".join(f"{counts[effect]} {effect}" for effect in Effect if counts[effect])
    click.echo(f"{counted(jobs, 'TFJob')} read: {told or 'no notes'}", err=True)
    return int(Exit.USAGE if counts[Effect.REFUSED] or unread else Exit.OK)


def _kind(obj: Mapping[str, Any]) -> str:
    """With its API group where that is what is wrong."""
    kind = str(obj.get("kind"))
    return f"{kind} of {obj.get('apiVersion')}" if kind.lower() == KIND.lower() else kind


def _files(given: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Each file, and its place below --directory."""
    for name in given:
        path = Path(name)
        if not path.is_dir():
            yield name, Path("stdin.yaml" if name == "-" else path.name).with_suffix(".yaml")
            continue
        for file in sorted(path.rglob("*")):
            if file.suffix in _SUFFIXES and file.is_file():
                yield str(file), file.relative_to(path).with_suffix(".yaml")


def _converted(obj: Any, strategy: Strategy) -> tuple[Conversion | None, str]:
    if not is_tfjob(obj):
        notes = [Note(Effect.CHANGED, str(obj.get("kind")), text) for text in other_labels(obj.get("spec"))]
        return None, f"{_comments(notes)}{data(obj, Format.YAML)}\n"
    conversion = convert(obj, strategy)
    comments = _comments(conversion.notes)
    return conversion, f"{comments}{data(conversion.job, Format.YAML)}\n" if conversion.job else comments


def _comments(notes: Iterable[Note]) -> str:
    return "".join(f"# {' '.join(str(note).split())}\n" for note in notes)


def _complain(file: str, conversion: Conversion | None) -> None:
    for note in conversion.notes if conversion else ():
        if note.effect is Effect.REFUSED:
            click.echo(f"{file}: {conversion.name if conversion else ''}: {note}", err=True)
