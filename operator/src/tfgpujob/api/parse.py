"""From the object that a user wrote to a JobSpec, or to all its problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from pydantic import ValidationError

from tfgpujob.api.base import value_at
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.limits import too_large
from tfgpujob.api.rules import JOB_RULES, NAME_RULES, access
from tfgpujob.api.rules.rule import Job, JobRule
from tfgpujob.api.run_policy import RunPolicy
from tfgpujob.api.spec import JobSpec
from tfgpujob.api.template import PodTemplate, read_template
from tfgpujob.api.translate import MAX_PROBLEMS, shown, translate_all
from tfgpujob.names import Role


def parse_job(
    obj: Mapping[str, Any],
    *,
    allow_host: bool = False,
    allowed_service_accounts: frozenset[str] | None = None,
    restricted: bool = False,
    accepted: bool = False,
) -> JobSpec | tuple[Invalid, ...]:
    """The job's spec, or all problems that were found. `obj` is a TFGPUJob as read from YAML; it is not changed.

    `allow_host` permits host access in templates (`rules/host.py`). `allowed_service_accounts` are the ServiceAccounts
    that templates may name; None allows any. `restricted`: templates must also comply with Pod Security "restricted",
    unless `allow_host`. `accepted`: this same spec was accepted before. Then only what an administrator allows is
    checked again, so that a rule of a later release does not refuse a running job.
    """
    metadata = obj.get("metadata")
    problems = [
        problem
        for rule in (() if accepted else NAME_RULES)
        for problem in rule.check(metadata if isinstance(metadata, Mapping) else {})
    ]
    job = read_spec(obj.get("spec"), allow_host=allow_host, allowed_service_accounts=allowed_service_accounts)
    if isinstance(job, Job):
        job = replace(job, restricted=restricted, **_names(metadata))
        found = islice(violations(job, access.RULES if accepted else JOB_RULES), MAX_PROBLEMS)
        problems += [problem for _, problem in found]
    else:
        problems += job
    if problems or not isinstance(job, Job):
        return tuple(problems)
    return job.spec


def _names(metadata: Any) -> dict[str, Any]:
    given = metadata if isinstance(metadata, Mapping) else {}
    return {key: given[key] for key in ("name", "namespace") if isinstance(given.get(key), str)}


def read_run_policy(obj: Mapping[str, Any]) -> RunPolicy:
    """spec.runPolicy as far as it is valid, whatever is wrong with the rest of the job; defaults for fields that are
    not.
    """
    policy = value_at(obj, "spec", "runPolicy")
    known = (field.alias or name for name, field in RunPolicy.model_fields.items())
    given = {k: policy[k] for k in known if k in policy} if isinstance(policy, Mapping) else {}
    readable = {k: v for k, v in given.items() if _reads({k: v})}
    return RunPolicy.model_validate(readable, by_alias=True, by_name=False)


def _reads(policy: Mapping[str, Any]) -> bool:
    try:
        RunPolicy.model_validate(dict(policy), by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


def violations(job: Job, rules: Sequence[JobRule] = JOB_RULES) -> Iterator[tuple[str, Invalid]]:
    """Every rule that the job breaks, by the rule's id."""
    for rule in rules:
        for problem in rule.check(job):
            yield rule.id, problem


def read_spec(
    spec: Any, *, allow_host: bool = False, allowed_service_accounts: frozenset[str] | None = None
) -> Job | list[Invalid]:
    """The spec if every field is valid by itself. Rules across fields are not checked here."""
    if spec is None:
        return [Invalid("spec", "is missing", "add it, with strategy and replicaSpecs")]
    if not isinstance(spec, Mapping):
        return [Invalid("spec", f"{shown(spec)} is no mapping", "give a mapping of keys to values")]
    if (problem := too_large(spec)) is not None:
        return [problem]
    templates, problems = _templates(spec)
    try:
        parsed = JobSpec.model_validate(dict(spec), by_alias=True, by_name=False)
    except ValidationError as error:
        return [*translate_all(error, "spec", JobSpec, spec), *problems]
    return problems or Job(parsed, templates, allow_host, allowed_service_accounts)


def _templates(spec: Mapping[str, Any]) -> tuple[dict[Role, PodTemplate], list[Invalid]]:
    """The valid templates, and the problems of the others. The models report a template that is not a mapping."""
    templates: dict[Role, PodTemplate] = {}
    problems: list[Invalid] = []
    for role in Role:
        template = value_at(spec, "replicaSpecs", str(role), "template")
        if not isinstance(template, Mapping):
            continue
        try:
            templates[role] = read_template(template)
        except ValidationError as error:
            problems += translate_all(error, f"spec.replicaSpecs.{role}.template", PodTemplate, template)
    return templates, problems
