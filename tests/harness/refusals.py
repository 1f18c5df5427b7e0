"""How a real API server says no: code, reason and message of each refusal."""

from __future__ import annotations

from tests.harness.resources import Resource

from tfgpujob.kube.errors import ApiError


def invalid(resource: Resource, name: str, problems: list[str]) -> ApiError:
    """422, worded as the API server does."""
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return ApiError(422, "Invalid", f'{resource.in_messages(kind=True)} "{name}" is invalid: {text}')


def forbidden(resource: Resource, name: str, problem: str) -> ApiError:
    """403, worded as the API server does."""
    return ApiError(403, "Forbidden", f'{resource.in_messages()} "{name}" is forbidden: {problem}')


def bad_request(problem: str) -> ApiError:
    """400: the body does not fit the request or the type."""
    return ApiError(400, "BadRequest", problem)


def not_found(row: Resource, name: str) -> ApiError:
    """404."""
    return ApiError(404, "NotFound", f'{row.in_messages()} "{name}" not found')


def already_exists(row: Resource, name: str, *, going: bool) -> ApiError:
    """409 with reason AlreadyExists; `going`: what has the name is being deleted."""
    return ApiError(
        409,
        "AlreadyExists",
        f'{"object is being deleted: " if going else ""}{row.in_messages()} "{name}" already exists',
    )


def conflict(row: Resource, name: str, problem: str, *, kind: bool = False) -> ApiError:
    """409 with reason Conflict: another version, or another object."""
    words = row.in_messages(kind=kind)
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {words} "{name}": {problem}')


def check_precondition(row: Resource, name: str, what: str, asked: str, found: str, how: str) -> None:
    """Raise 409 when a delete asks for another uid or version than the object has."""
    if asked and asked != found:
        problem = f"the {what} in the precondition ({asked}) does not match the {what} in record ({found})."
        raise conflict(row, name, f"{problem} The object might have been {how}", kind=True)
