"""spec.trainer.output: a directory that nothing else uses."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Job, JobRule, Refusal, rules_of, trainer_of
from tfgpujob.api.template import items
from tfgpujob.names import CONFIG_DIR, MODELS_DIR
from tfgpujob_contract.limits import SHM_DIR
from tfgpujob_contract.pod import CODE_DIR
from tfgpujob_contract.trainer_config import Output

_TAKEN = (CODE_DIR, CONFIG_DIR, SHM_DIR)
_ABOVE = ("/", "/etc", "/etc/", "/dev", "/dev/")
_ANOTHER = "choose another one, such as /output"


def _output(job: Job) -> Output | None:
    return job.spec.trainer.output if job.spec.trainer else None


def _is_below(directory: str, parent: str) -> bool:
    return f"{directory.rstrip('/')}/".startswith(f"{parent}/")


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


RULES = rules_of(
    Refusal(
        "trainer.output-claim",
        of=_output,
        breaks=lambda output: output.sub_path is not None and output.claim is None,
        at="spec.trainer.output",
        field="subPath",
        cel="!has(self.subPath) || has(self.claim)",
        problem="is a folder of no claim",
        fix="name the claim in spec.trainer.output.claim, or remove subPath",
    ),
    Refusal(
        "trainer.output-place",
        of=_output,
        breaks=lambda output: output.directory in _ABOVE or any(_is_below(output.directory, taken) for taken in _TAKEN),
        at="spec.trainer.output",
        field="directory",
        cel=f"!has(self.directory) || (!(self.directory in {list(_ABOVE)}) && "
        f"!{list(_TAKEN)}.exists(d, self.directory == d || self.directory.startsWith(d + '/')))",
        shows=lambda output: output.directory,
        problem="is in or above a directory that the operator mounts for something else",
        fix=_ANOTHER,
    ),
    Refusal(
        "trainer.models-place",
        of=trainer_of,
        breaks=lambda trainer: trainer.models is not None and _is_below(trainer.output.directory, MODELS_DIR),
        at="spec.trainer",
        field="output.directory",
        cel="!has(self.models) || !has(self.output) || !has(self.output.directory) || "
        f"!(self.output.directory == '{MODELS_DIR}' || self.output.directory.startsWith('{MODELS_DIR}/'))",
        shows=lambda trainer: trainer.output.directory,
        problem="is where spec.trainer.models is mounted, read-only",
        fix=_ANOTHER,
    ),
    Refusal(
        "trainer.output-plain",
        of=_output,
        breaks=lambda output: "//" in output.directory or bool({".", ".."} & {*output.directory.split("/")}),
        at="spec.trainer.output",
        field="directory",
        cel="!has(self.directory) || !self.directory.matches('//|/[.][.]?(/|$)')",
        shows=lambda output: output.directory,
        problem="is not the only way to write this path",
        fix="write it without //, . and .., such as /output",
    ),
    JobRule(
        "trainer.output-mount",
        _output_mount,
        only_python="a list in a list: a cost limit would have to cap what people may write",
    ),
)
