"""The progress report that a trainer serves at GET /progress. Untrusted: one that does not fit the schema is
ignored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from tfgpujob.api.base import NotNegative, NotNegative64
from tfgpujob_contract.pod import MAX_PROGRESS

MAX_MILLISECONDS: Final = 250_000_000_000_000
"""In the year 9892."""

MOST_IN_PLACE: Final = 1_000_000
"""Maximum of restarts in place that one attempt may report."""

_Decimal = Annotated[float, Field(allow_inf_nan=False)]
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_Task = Annotated[str, Field(pattern=r"^(chief|worker)-[0-9]{1,4}$")]

_Pod = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9-]+$")]


class Schema(BaseModel):
    """Base of a trainer's reports. Unknown keys are ignored: they come from a newer trainer."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", alias_generator=to_camel)


class Checkpoint(Schema):
    """The newest complete checkpoint."""

    step: NotNegative64
    directory: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = None
    seconds: NotNegative | None = None
    """How long the save took; None: the program does not report it."""

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, text: str | None) -> str | None:
        """Raises ValueError for the 31st of February: the API server would refuse the whole status."""
        if text is not None:
            datetime.fromisoformat(text)
        return text


class TrainerLedger(Schema):
    """What the time of a trainer's pod was spent on, since it began. Milliseconds; times since 1970."""

    until: Annotated[int, Field(ge=0, le=MAX_MILLISECONDS)]
    parts: Annotated[
        dict[Annotated[str, Field(max_length=32)], Annotated[int, Field(ge=0, le=MAX_MILLISECONDS)]],
        Field(max_length=32),
    ]
    reached: NotNegative64 = 0
    """The highest step that was ever completed."""
    marks: Annotated[
        dict[Annotated[str, Field(max_length=32)], Annotated[int, Field(ge=0, le=MAX_MILLISECONDS)]],
        Field(max_length=16),
    ] = {}
    """Times of its last restart in place, or else of its start."""


class Report(Schema):
    """The progress of one task. None: not known yet."""

    phase: Annotated[str, Field(max_length=32, pattern=r"^[a-z]+( [a-z]+)*$")]
    step: NotNegative64 | None = None
    steps: NotNegative64 | None = None
    epoch: NotNegative64 | None = None
    epochs: NotNegative64 | None = None
    loss: _Decimal | None = None
    examples_per_second: _Positive | None = None
    input_wait: Annotated[float, Field(ge=0, le=1)] | None = None
    """Recent share of its time spent waiting for input data."""
    step_seconds: _Positive | None = None
    worker_seconds: Annotated[dict[_Task, _Positive], Field(max_length=512)] | None = None
    """Seconds that each worker needs for a step without the all-reduce, by role-index; known to all in a synchronous
    job."""
    gpu_memory_mib: Annotated[list[NotNegative64] | None, Field(max_length=64, alias="gpuMemoryMiB")] = None
    """The most that TensorFlow has used on each GPU of the replica."""
    gpu_use_percent: Annotated[list[Annotated[int, Field(ge=0, le=100)]] | None, Field(max_length=64)] = None
    """Current utilization of each of them, by NVML."""
    gpu_idle_seconds: NotNegative64 | None = None
    """Since one of them was found in use while it trains; None: unknown."""
    idle_seconds: NotNegative64 = 0
    """Since it finished a step, an evaluation batch or a save."""
    waits_for: Annotated[list[_Pod], Field(max_length=8)] | None = None
    """Pods that have not started, for which it waits."""
    waits_for_peers: bool = False
    """It has computed its part of the step and waits in the all-reduce."""
    last_checkpoint: Checkpoint | None = None
    in_place_restarts: Annotated[int, Field(ge=0, le=MOST_IN_PLACE)] = 0
    """How often the training processes of this attempt were started again in their pods."""
    ledger: TrainerLedger | None = None
    """What the time of its pod was spent on."""


def parse(payload: bytes) -> Report | None:
    """The report, or None if the payload is not one."""
    if len(payload) > MAX_PROGRESS:
        return None
    try:
        return Report.model_validate_json(payload)
    except ValidationError:
        return None


class _Measured(Schema):
    loss: float | None = None
    """May be infinite or not a number."""


class _Splits(Schema):
    train: _Measured = _Measured()


class Summary(Schema):
    """The summary of a successful trainer in its pod's termination message."""

    steps: NotNegative64 | None = None
    epochs: NotNegative64 | None = None
    examples_per_second: _Positive | None = None
    splits: _Splits = _Splits()


class _LastWords(Schema):
    summary: Summary


class _LastLedger(Schema):
    ledger: TrainerLedger


def parse_summary(message: str) -> Summary | None:
    """None if the message is another program's, or was cut."""
    try:
        return _LastWords.model_validate_json(message).summary
    except ValidationError:
        return None


def parse_ledger(message: str) -> TrainerLedger | None:
    """The ledger in a trainer's termination message. None: as for the summary."""
    try:
        return _LastLedger.model_validate_json(message).ledger
    except ValidationError:
        return None
