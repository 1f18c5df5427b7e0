"""The case table, told to the operator and to the API server."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from tests.unit.api.crd_emulator import Refused, admit
from tests.unit.api.table import Case, load

from tfgpujob.api import parse_job
from tfgpujob.api.crd import cel_entries, root_schema
from tfgpujob.api.parse import read_spec, violations
from tfgpujob.api.rules import JOB_RULES, NAME_RULES
from tfgpujob.api.rules.rule import Cel, Job

CASES = load()
WITH_CEL = root_schema(cel=True)
WITHOUT_CEL = root_schema(cel=False)
RULES = {rule.id: rule.cel for rule in NAME_RULES} | {rule.id: rule.cel for rule in JOB_RULES}


@cache
def refused_with_cel(case: str) -> tuple[Refused, ...]:
    return tuple(admit(WITH_CEL, next(c.job for c in CASES if c.name == case)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_operator_and_the_api_server_say_what_the_table_says(case: Case) -> None:
    before = copy.deepcopy(case.job)
    parsed = parse_job(case.job, **case.options)
    assert case.job == before
    invalids = parsed if isinstance(parsed, tuple) else ()
    assert len(invalids) == len(case.errors), "\n".join(map(str, invalids))
    for expected, invalid in zip(case.errors, invalids, strict=True):
        assert invalid.field.endswith(expected["field"])
        assert expected["problem"] in invalid.problem
        assert invalid.fix
        assert expected.get("fix", "") in invalid.fix
    assert broken_in_python(case) == case.rules

    refused = refused_with_cel(case.name)
    assert {rule for rule, _ in broken_in_cel(refused)} == {rule for rule in case.rules if RULES[rule]}
    assert sorted(r.field for r in refused if not r.rule) == sorted(case.schema)
    for broken in (r for r in refused if r.rule):
        said = broken.field or broken.message.partition(":")[0]
        assert any(invalid.field.startswith(said) for invalid in invalids), broken

    # A server without CEL misses the other rules; the operator looks at them again anyway.
    by_name = {"metadata.name"} if case.rules & {"name.pattern", "name.length"} else set()
    assert {r.field for r in admit(WITHOUT_CEL, case.job)} == by_name | set(case.schema)


def test_every_rule_is_broken_by_a_case() -> None:
    assert set().union(*(case.rules for case in CASES)) == set(RULES)


def test_every_cel_rule_is_broken_by_a_case() -> None:
    broken = {entry for case in CASES for _, entry in broken_in_cel(refused_with_cel(case.name))}
    assert broken == {entry for entries in RULES.values() for entry in entries}


def test_a_rule_says_why_it_has_no_cel() -> None:
    reasons = {rule.id: rule.only_python for rule in NAME_RULES} | {rule.id: rule.only_python for rule in JOB_RULES}
    for rule, reason in reasons.items():
        assert bool(RULES[rule]) != bool(reason), rule


def test_rule_ids_are_unique() -> None:
    assert len(RULES) == len(NAME_RULES) + len(JOB_RULES)


def test_all_cel_rules_are_in_the_crd() -> None:
    def count(schema: object) -> int:
        if isinstance(schema, dict):
            return len(schema.get("x-kubernetes-validations", ())) + sum(map(count, schema.values()))
        return 0

    assert count(WITH_CEL) == len(list(cel_entries()))
    assert count(WITHOUT_CEL) == 0


def broken_in_python(case: Case) -> set[str]:
    broken = {rule.id for rule in NAME_RULES if list(rule.check(case.job["metadata"]))}
    job = read_spec(case.job["spec"], **case.options)
    return broken | ({rule for rule, _ in violations(job)} if isinstance(job, Job) else set())


def broken_in_cel(refused: Iterable[Refused]) -> Iterator[tuple[str, Cel]]:
    rules = {r.rule for r in refused if r.rule}
    for rule, entries in RULES.items():
        for entry in entries:
            for role in ("chief", "worker", "ps", "evaluator"):
                if entry.rule.replace("<role>", role) in rules and on_path(entry, refused, role):
                    yield rule, entry


def on_path(entry: Cel, refused: Iterable[Refused], role: str) -> bool:
    """Entries of several roles' templates have the same text; the field distinguishes them."""
    path = ".".join(filter(None, (entry.at, entry.field))).replace("<role>", role)
    return any(r.field == path for r in refused)
