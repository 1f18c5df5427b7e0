"""What the verbs for a cluster share: options, the connection, and explained errors."""

from __future__ import annotations

import functools
import logging
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

from tfgpujob import names
from tfgpujob.client import ApiError, Client, InvalidJobError, InvalidNameError, NoClusterError, PodError
from tfgpujob.core.observed.ownership import is_dispatched
from tfgpujob.exits import CliError, Exit
from tfgpujob.kube import paths

_UNCHECKED = re.compile(
    r", <nil>: Invalid value: null: some validation rules were not checked.{0,100}?to complete validation"
)
"""What an API server adds to each schema error. It names no field."""
_COMMAND = re.compile(r"kubectl(?= [a-z])|tfgpu (?:doctor|[a-z]{1,20} ([-\w]{1,253}))(?![-\w])")
"""A command in a text, with the job that it is for; kubectl takes the flags first."""
_FIXES = {
    401: "log in again, or name another login by --context",
    403: "ask an administrator for the role edit in this namespace",
}


def cluster_verb(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds -n and --context to a verb, and gives it a connected `client`."""

    @functools.wraps(command)
    def run(*arguments: Any, context: str | None, namespace: str | None, **options: Any) -> Any:
        with connected(context, namespace) as client:
            return command(*arguments, client=client, **options)

    return cluster_options(run)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """-n and --context, for a verb that connects by itself."""
    with_context = click.option("--context", help="The kubeconfig's context, in place of the current one.")(command)
    of_namespace = click.option("-n", "--namespace", callback=_checked_namespace, help="In place of the context's.")
    return of_namespace(with_context)


@contextmanager
def connected(context: str | None, namespace: str | None) -> Iterator[Client]:
    """A client whose errors end `tfgpu` with one line and the right exit code."""
    with errors_explained(), Client(context=context, namespace=namespace) as client:
        yield client


@contextmanager
def errors_explained() -> Iterator[None]:
    """Errors of a client end `tfgpu` with one line and the right exit code."""
    # The client logs that a file is missing; the error says so too.
    logging.getLogger("kubernetes").addHandler(logging.NullHandler())
    try:
        yield
    except NoClusterError as error:
        raise CliError(str(error), code=Exit.CLUSTER) from error
    except (InvalidJobError, InvalidNameError, PodError) as error:
        raise CliError(str(error)) from error
    except ApiError as error:
        raise _explained(error) from error


def to_copy(text: str, name: str, namespace: str | None = None) -> str:
    """The text, in which the commands for this job have the -n and --context of this command line. `namespace`: the
    job's, where it is not the context's.
    """
    given = click.get_current_context().params
    flags = {"-n": given.get("namespace") or namespace, "--context": given.get("context")}
    words = "".join(f" {flag} {shlex.quote(value)}" for flag, value in flags.items() if value)
    return _COMMAND.sub(lambda found: f"{found[0]}{words if found[1] in (None, name) else ''}", text)


def refuse_elsewhere(client: Client, name: str) -> None:
    """Raises CliError for a job whose pods are in another cluster: nothing could be shown while it runs."""
    if is_dispatched(client.get(name).raw):
        problem = f"{name} is run by MultiKueue in another cluster, and its pods are there"
        raise CliError(problem, f"tfgpu describe {name} says how to find it; ask there with --context")


def _explained(error: ApiError) -> CliError:
    message = " ".join(error.message.split())
    if error.code == 404 and names.PLURAL in message and "could not find" not in message:
        return CliError(message, "see tfgpu list", Exit.NOT_FOUND)
    if error.code == 404 and message.startswith("namespaces "):
        return CliError(message, "name one that is there with -n, or create it", Exit.NOT_FOUND)
    if error.code == 404:
        fix = "is the operator installed here? See docs/install.md"
        return CliError(f"the cluster does not serve this: {message}", fix, Exit.CLUSTER)
    if error.code == 409:
        taken = error.reason == "AlreadyExists"
        way = "replace it with submit --replace" if names.PLURAL in message else "delete it first"
        fix = f"{way}, or choose another name" if taken else "it was changed at the same time: look at it first"
        return CliError(message, fix, Exit.USAGE)
    if error.code in {400, 422}:
        return CliError(_UNCHECKED.sub("", message), "correct it", Exit.USAGE)
    fix = _FIXES.get(error.code, "is the cluster up, and is KUBECONFIG right?")
    return CliError(message or str(error), fix, Exit.CLUSTER)


def _complete_name(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of existing jobs; none when the cluster does not answer."""
    try:
        with Client(context=context.params.get("context"), namespace=context.params.get("namespace")) as client:
            return [CompletionItem(job.name) for job in client.list() if job.name.startswith(incomplete)]
    except (ApiError, NoClusterError):
        return []


def _checked_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return _checked(value, f"{value!r} is no name of a job", "write its name alone, and its namespace with -n")


def _checked_namespace(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return _checked(value, f"{value!r} is no name of a namespace", "kubectl get namespaces shows those there are")


def _checked(value: str | None, problem: str, fix: str) -> str | None:
    """Checked before any request."""
    try:
        return value if value is None else paths.checked(value)
    except InvalidNameError as error:
        raise CliError(problem, fix) from error


def _checked_names(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str | None, ...]:
    return tuple(_checked_name(context, parameter, value) for value in values)


def job_argument(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The name of a job in the cluster."""
    return click.argument("name", required=required, callback=_checked_name, shell_complete=_complete_name)


job_name = job_argument(required=True)
job_names = click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, callback=_checked_names, shell_complete=_complete_name
)

timeout = click.option(
    "--timeout", "timeout_seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after this long."
)
