"""A rule: one statement about a job that spans fields, in Python and, where possible, in CEL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, TypeVar

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.spec import JobSpec
from tfgpujob.api.template import PodTemplate
from tfgpujob.names import MAX_LABEL_LENGTH, MAX_NAME_LENGTH, Role
from tfgpujob_contract.strategies import Strategy
from tfgpujob_contract.trainer_config import TrainerConfig

EVERY_ROLE = "<role>"
"""In Cel.at and Cel.field: the rule is repeated for each role."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose every field is valid by itself."""

    spec: JobSpec
    templates: Mapping[Role, PodTemplate]
    """Templates of the roles that have one."""
    allow_host: bool = False
    allowed_service_accounts: frozenset[str] | None = None
    """None allows any."""
    restricted: bool = False
    """Whether its pods comply with Pod Security "restricted"."""
    name: str = "j" * MAX_NAME_LENGTH
    namespace: str = "n" * MAX_LABEL_LENGTH
    """Both are as long as possible where they are not known."""


@dataclass(frozen=True, slots=True)
class Cel:
    """An entry of x-kubernetes-validations.

    It stays within the cost limits of API servers from 1.28 on: regular expressions on the name only, every list with
    maxItems, no nested lists.
    """

    at: str
    """The schema that has the rule: spec, spec.trainer, spec.replicaSpecs.<role>.template."""
    rule: str
    message: str
    field: str = ""
    """Below `at`: the field the message is about."""


T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[T]):
    id: str
    check: Callable[[T], Iterator[Invalid]]
    cel: tuple[Cel, ...] = field(default=())
    only_python: str = ""
    """Why there is no CEL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A rule about one field, in the same words in Python and in CEL."""

    id: str = field(kw_only=False)
    of: Callable[[Job], Any]
    """The part of the job that it is about; None: the job has none."""
    breaks: Callable[[Any], bool]
    at: str
    """As Cel.at, with `field` below it."""
    field: str = ""
    cel: str
    """True for a job that is not refused."""
    problem: str
    fix: str
    shows: Callable[[Any], str] | None = None
    """The wrong value, which Python puts before the problem; a message of CEL is fixed."""

    def check(self, job: Job) -> Iterator[Invalid]:
        found = self.of(job)
        if found is not None and self.breaks(found):
            shown = f"{self.shows(found)} " if self.shows else ""
            yield Invalid(f"{self.at}.{self.field}".rstrip("."), f"{shown}{self.problem}", self.fix)


def rules_of(*entries: Rule[Job] | Refusal) -> tuple[JobRule, ...]:
    """The rules, in this order. Refusals with the same id, which stand together, are one."""
    rules: list[JobRule] = []
    for rule_id, together in groupby(entries, attrgetter("id")):
        found = [*together]
        rules += [entry for entry in found if isinstance(entry, Rule)]
        if refusals := [entry for entry in found if isinstance(entry, Refusal)]:
            rules.append(_rule(rule_id, refusals))
    return tuple(rules)


def _rule(rule_id: str, refusals: Sequence[Refusal]) -> JobRule:
    def check(job: Job) -> Iterator[Invalid]:
        for refusal in refusals:
            yield from refusal.check(job)

    cel = (Cel(at=r.at, rule=r.cel, field=r.field, message=f"{r.problem}; {r.fix}") for r in refusals)
    return JobRule(rule_id, check, cel=tuple(cel))


def trainer_of(job: Job) -> TrainerConfig | None:
    """spec.trainer, in any mode."""
    return job.spec.trainer


def training_of(job: Job) -> TrainerConfig | None:
    """spec.trainer of a job that trains."""
    return None if job.spec.predicts else job.spec.trainer


NameRule = Rule[Mapping[str, Any]]
"""About metadata, which is checked even if the spec is not valid."""
JobRule = Rule[Job]


def strategy_in(strategies: tuple[Strategy, ...]) -> str:
    """CEL at `spec`: the strategy is one of these."""
    return f"self.strategy in [{', '.join(repr(str(strategy)) for strategy in strategies)}]"


def strategy_is(strategies: tuple[Strategy, ...]) -> str:
    """The same without a list."""
    return " || ".join(f"self.strategy == '{strategy}'" for strategy in strategies)


def strategy_is_not(strategies: tuple[Strategy, ...]) -> str:
    """CEL at `spec`: it is none of these."""
    return " && ".join(f"self.strategy != '{strategy}'" for strategy in strategies)
