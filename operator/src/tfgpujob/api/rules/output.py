"""spec.trainer.output: a directory that nothing else uses."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule
from tfgpujob.api.template import items
from tfgpujob.names import CODE_DIR, CONFIG_DIR, MODELS_DIR, SHM_DIR

_TAKEN = (CODE_DIR, CONFIG_DIR, SHM_DIR)
_ABOVE = ("/", "/etc", "/etc/", "/dev", "/dev/")


def _output(job: Job) -> Iterator[Invalid]:
    output = job.spec.trainer.output if job.spec.trainer else None
    if output is not None and output.sub_path is not None and output.claim is None:
        fix = "name the claim in spec.trainer.output.claim, or remove subPath"
        yield Invalid("spec.trainer.output.subPath", "is a folder of no claim", fix)


def _output_place(job: Job) -> Iterator[Invalid]:
    directory = job.spec.trainer.output.directory if job.spec.trainer else None
    taken = next((d for d in _TAKEN if directory and f"{directory.rstrip('/')}/".startswith(f"{d}/")), None)
    if taken is None and directory in _ABOVE:
        taken = directory
    if taken is not None:
        problem = f"{directory} is in or above a directory that the operator mounts for something else"
        yield Invalid("spec.trainer.output.directory", problem, "choose another one, such as /output")


def _models_place(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or trainer.models is None:
        return
    directory = trainer.output.directory
    if f"{directory.rstrip('/')}/".startswith(f"{MODELS_DIR}/"):
        problem = f"{directory} is where spec.trainer.models is mounted, read-only"
        yield Invalid("spec.trainer.output.directory", problem, "choose another one, such as /output")


def _output_plain(job: Job) -> Iterator[Invalid]:
    directory = job.spec.trainer.output.directory if job.spec.trainer else ""
    if "//" in directory or {".", ".."} & {*directory.split("/")}:
        problem = f"{directory} is not the only way to write this path"
        yield Invalid("spec.trainer.output.directory", problem, "write it without //, . and .., such as /output")


def _output_mount(job: Job) -> Iterator[Invalid]:
    trainer = job.spec.trainer
    if trainer is None or trainer.output.claim is None:
        return
    for role, template in job.templates.items():
        place, container = template.spec.training_container() or ("", None)
        for index, mount in items(container, "volumeMounts") if container else ():
            if str(mount.get("mountPath", "")).rstrip("/") == trainer.output.directory.rstrip("/"):
                yield Invalid(
                    f"spec.replicaSpecs.{role}.template.spec.{place}.volumeMounts[{index}]",
                    f"is mounted where spec.trainer.output.claim {trainer.output.claim} is to be",
                    "remove the mount, or remove output.claim to write to this volume",
                )


RULES = (
    JobRule(
        "trainer.output-claim",
        _output,
        cel=(
            Cel(
                at="spec.trainer.output",
                rule="!has(self.subPath) || has(self.claim)",
                message="subPath is a folder of no claim; name the claim, or remove subPath",
            ),
        ),
    ),
    JobRule(
        "trainer.output-place",
        _output_place,
        cel=(
            Cel(
                at="spec.trainer.output",
                rule=f"!has(self.directory) || (!(self.directory in {list(_ABOVE)}) && "
                f"!{list(_TAKEN)}.exists(d, self.directory == d || self.directory.startsWith(d + '/')))",
                field="directory",
                message="is in or above a directory that the operator mounts for something else; choose another one, "
                "such as /output",
            ),
        ),
    ),
    JobRule(
        "trainer.models-place",
        _models_place,
        cel=(
            Cel(
                at="spec.trainer",
                rule="!has(self.models) || !has(self.output) || !has(self.output.directory) || "
                f"!(self.output.directory == '{MODELS_DIR}' || self.output.directory.startsWith('{MODELS_DIR}/'))",
                field="output.directory",
                message="is where models is mounted, read-only; choose another one, such as /output",
            ),
        ),
    ),
    JobRule(
        "trainer.output-plain",
        _output_plain,
        cel=(
            Cel(
                at="spec.trainer.output",
                rule="!has(self.directory) || !self.directory.matches('//|/[.][.]?(/|$)')",
                field="directory",
                message="is not the only way to write this path; write it without //, . and .., such as /output",
            ),
        ),
    ),
    JobRule(
        "trainer.output-mount",
        _output_mount,
        only_python="a list in a list: a cost limit would have to cap what people may write",
    ),
)
