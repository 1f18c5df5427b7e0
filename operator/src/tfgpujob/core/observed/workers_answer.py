"""A leader's answer to PUT /workers. Untrusted: one that does not fit is ignored."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tfgpujob.core.observed.snapshot import Agreed, LeaderAnswer, Question, Refused
from tfgpujob_contract.pod import MAX_REPLICAS

_MAX_REASON: Final = 200
_UNKNOWN: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
_Workers = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


class _Schema(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Agreed(_Schema):
    workers: _Workers
    wanted: _Workers
    without: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_REPLICAS)]], Field(max_length=MAX_REPLICAS)]


class _Refused(_Schema):
    reason: str


def parse_answer(pod_uid: str, question: Question, status: int, payload: bytes) -> LeaderAnswer | None:
    """The answer of that pod to that question, by HTTP status and body. None: no decision yet, so it is asked again."""
    if status in _UNKNOWN:
        return LeaderAnswer(pod_uid, question, Refused("the trainer in its pods does not know how"))
    try:
        if status == HTTPStatus.OK:
            agreed = _Agreed.model_validate_json(payload)
            answer = Agreed(agreed.workers, agreed.wanted, frozenset(agreed.without))
            return LeaderAnswer(pod_uid, question, answer)
        if status == HTTPStatus.CONFLICT:
            return LeaderAnswer(pod_uid, question, Refused(_plain(_Refused.model_validate_json(payload).reason)))
    except ValidationError:
        pass
    return None


def _plain(reason: str) -> str:
    """On one line, and never empty."""
    text = "".join(c if c.isprintable() else " " for c in reason[:_MAX_REASON]).strip().rstrip(".")
    return text or "its leader can't"
