"""Fields of a pod template that the operator sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.pod_schema import against_schema
from tfgpujob.api.rules.gpu import processes
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel, Job, JobRule
from tfgpujob.api.template import PodTemplate, items, part
from tfgpujob.names import CONTAINER, GROUP, PORT, port_name
from tfgpujob_contract.variables import Variable

_PREFIX = f"{GROUP}/"
_RESERVED = "tfgpu-"
_OURS = "is set by the operator"
_NO_RESTART = "pods and containers of a job are never restarted in place"
_FOUND_BY_IT = "remove it: the other replicas find the pod by it"
_NAMES = "remove it: pods are named <job>-<role>-<index>"
OWN_ENV = frozenset({"TF_CONFIG", *Variable})
"""Variables that the operator sets on the training container."""

TemplateCheck = Callable[[PodTemplate, str], Iterator[Invalid]]
"""Called with the template and its path."""


def each_template(check: TemplateCheck) -> Callable[[Job], Iterator[Invalid]]:
    """The check, run on every template of a job."""

    def run(job: Job) -> Iterator[Invalid]:
        for role, template in job.templates.items():
            yield from check(template, f"spec.replicaSpecs.{role}.template")

    return run


def _restart_policy(template: PodTemplate, path: str) -> Iterator[Invalid]:
    policy = template.spec.restart_policy
    if policy not in {None, "Never"}:
        fix = f"remove it and set {path.removesuffix('.template')}.restartPolicy"
        yield Invalid(f"{path}.spec.restartPolicy", f"{_NO_RESTART}, so not {policy}", fix)


def _container_restarts(template: PodTemplate, path: str) -> Iterator[Invalid]:
    """Only main containers: an init container with restartPolicy Always is a sidecar, and may restart."""
    fix = f"remove it and set {path.removesuffix('.template')}.restartPolicy"
    for index, container in enumerate(template.spec.containers):
        where = f"{path}.spec.containers[{index}]"
        policy = part(container, "restartPolicy")
        if policy is not None and policy != "Never":
            problem = f"{_NO_RESTART}, so not {policy!r:.60}"
            yield Invalid(f"{where}.restartPolicy", problem, fix)
        if part(container, "restartPolicyRules"):
            yield Invalid(f"{where}.restartPolicyRules", _NO_RESTART, fix)


def _address(template: PodTemplate, path: str) -> Iterator[Invalid]:
    for name in ("hostname", "subdomain"):
        if getattr(template.spec, name) is not None:
            yield Invalid(f"{path}.spec.{name}", _OURS, _FOUND_BY_IT)


def _name(template: PodTemplate, path: str) -> Iterator[Invalid]:
    if template.metadata.name is not None:
        yield Invalid(f"{path}.metadata.name", _OURS, _NAMES)


def _own_labels(template: PodTemplate, path: str) -> Iterator[Invalid]:
    for kind in ("labels", "annotations"):
        for key in getattr(template.metadata, kind):
            if key.startswith(_PREFIX):
                fix = f"remove it: what begins with {_PREFIX} is the operator's"
                yield Invalid(f"{path}.metadata.{kind}[{key}]", _OURS, fix)


def _own_env(template: PodTemplate, path: str) -> Iterator[Invalid]:
    for place, container in template.spec.each_container():
        own = OWN_ENV if container.name == CONTAINER else ()
        for index, variable in enumerate(container.env):
            if variable.name in own:
                fix = "remove it: the operator sets it for each replica"
                yield Invalid(f"{path}.spec.{place}.env[{index}]", f"{variable.name} is not yours to set", fix)


def _schema(job: Job) -> Iterator[Invalid]:
    for role in job.templates:
        template = getattr(job.spec.replica_specs, role).template
        yield from against_schema(template, f"spec.replicaSpecs.{role}.template")


def _port(job: Job) -> Iterator[Invalid]:
    for role, template in job.templates.items():
        tasks = processes(job.spec, role, getattr(job.spec.replica_specs, role))
        ours = {port_name(number): number for number in range(PORT, PORT + tasks)}
        place, container = template.spec.training_container() or ("", None)
        for index, port in items(container, "ports") if container else ():
            name, number = str(port.get("name")), port.get("containerPort")
            if name in ours and number != ours[name]:
                field = f"spec.replicaSpecs.{role}.template.spec.{place}.ports[{index}].name"
                problem = f"{name} is the name of port {ours[name]}, on which the replicas find each other"
                yield Invalid(field, problem, "give your port another name")


def _duplicates(template: PodTemplate, path: str) -> Iterator[Invalid]:
    names = Counter(container.name for _, container in template.spec.each_container())
    for name, count in names.items():
        if count > 1:
            yield Invalid(f"{path}.spec", f"{count} containers are named {name}", "give each a name of its own")


def _images(template: PodTemplate, path: str) -> Iterator[Invalid]:
    for place, container in template.spec.each_container():
        if container.name != CONTAINER and not container.image:
            yield Invalid(f"{path}.spec.{place}.image", "is missing", f"only {CONTAINER} has a default: name an image")


def _reserved(template: PodTemplate, path: str) -> Iterator[Invalid]:
    named = [(place, container.name) for place, container in template.spec.each_container()]
    named += [(f"volumes[{index}]", volume.name) for index, volume in enumerate(template.spec.volumes)]
    for place, name in named:
        if name.startswith(_RESERVED):
            fix = f"choose a name that does not begin with {_RESERVED}: those are the operator's"
            yield Invalid(f"{path}.spec.{place}.name", f"{name!r} is reserved", fix)


def _cel(rule: str, field: str, message: str) -> Cel:
    return Cel(at=f"spec.replicaSpecs.{EVERY_ROLE}.template", rule=rule, field=field, message=message)


_NO_MODEL = "the schema keeps these fields as they are given, and CEL knows no field that the schema does not"
_TWO_LISTS = "a list in a list, or a map: a cost limit would have to cap what people may write"

RULES = (
    JobRule(
        "template.restart-policy",
        each_template(_restart_policy),
        cel=(
            _cel(
                "!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Never'",
                "spec.restartPolicy",
                f"{_NO_RESTART}; remove it and set spec.replicaSpecs.<role>.restartPolicy",
            ),
        ),
    ),
    JobRule("template.container-restarts", each_template(_container_restarts), only_python=_TWO_LISTS),
    JobRule(
        "template.address",
        each_template(_address),
        cel=tuple(
            _cel(
                f"!has(self.spec) || !has(self.spec.{name})",
                f"spec.{name}",
                f"{_OURS}; {_FOUND_BY_IT}",
            )
            for name in ("hostname", "subdomain")
        ),
    ),
    JobRule(
        "template.name",
        each_template(_name),
        cel=(
            _cel(
                "!has(self.metadata) || !has(self.metadata.name)",
                "metadata.name",
                f"{_OURS}; {_NAMES}",
            ),
        ),
    ),
    JobRule("template.own-labels", each_template(_own_labels), only_python=_TWO_LISTS),
    JobRule("template.own-env", each_template(_own_env), only_python=_TWO_LISTS),
    JobRule("template.schema", _schema, only_python=_NO_MODEL),
    JobRule("template.port", _port, only_python=_TWO_LISTS),
    JobRule("template.duplicate-containers", each_template(_duplicates), only_python=_TWO_LISTS),
    JobRule("template.images", each_template(_images), only_python=_TWO_LISTS),
    JobRule("template.reserved-names", each_template(_reserved), only_python=_TWO_LISTS),
)
