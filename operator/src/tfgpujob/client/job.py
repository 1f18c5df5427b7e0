"""A TFGPUJob as it was read at one moment, with types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from tfgpujob import names
from tfgpujob.api import JobSpec, JobStatus, parse_job
from tfgpujob.api.status import JobCondition
from tfgpujob.client.errors import InvalidJobError
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.status import gpu_time
from tfgpujob.names import Condition
from tfgpujob_contract.trainer_config import Output


@dataclass(frozen=True)
class Job:
    """`raw` is the object itself; the rest is read from it. Fields that a newer operator added stay in `raw`."""

    raw: Object

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @cached_property
    def spec(self) -> JobSpec:
        """Raises pydantic's ValidationError for a spec that the operator has refused too."""
        return _spec(self.raw["spec"])

    @cached_property
    def status(self) -> JobStatus:
        """All fields are None until the operator has reconciled the job once."""
        return JobStatus.model_validate(self.raw.get("status") or {}, by_alias=True, by_name=False, extra="ignore")

    def is_true(self, condition: str) -> bool:
        """Whether status.conditions says so."""
        return is_true(self.raw, condition)

    @property
    def refusal(self) -> JobCondition | None:
        """Why the job, or its last edit, is not accepted, with the field and the fix; None when it is."""
        found = (one for one in self.status.conditions if one.type == Condition.ACCEPTED and one.status == "False")
        return next(found, None)

    @property
    def finished(self) -> bool:
        """It has succeeded or failed, for good."""
        return self.is_true(Condition.FINISHED)

    @property
    def succeeded(self) -> bool:
        return self.is_true(Condition.SUCCEEDED)

    @property
    def failed(self) -> bool:
        return self.is_true(Condition.FAILED)

    @property
    def claims(self) -> tuple[str, ...]:
        """The PersistentVolumeClaims that its pods need, by name."""
        spec = self.raw["spec"]
        trainer = spec.get("trainer") or {}
        found = [(trainer.get("output") or {}).get("claim")]
        found.append(((trainer.get("code") or {}).get("volume") or {}).get("claimName"))
        for replica in (spec.get("replicaSpecs") or {}).values():
            pod = ((replica or {}).get("template") or {}).get("spec") or {}
            found += [(v.get("persistentVolumeClaim") or {}).get("claimName") for v in pod.get("volumes") or ()]
        return tuple(dict.fromkeys(filter(None, found)))

    @property
    def output_goes_with_pods(self) -> bool:
        """Whether the output directory of the bundled trainer is in the pods alone."""
        if (trainer := self.raw["spec"].get("trainer")) is None:
            return False
        output = trainer.get("output") or {}
        directory = output.get("directory", Output().directory).rstrip("/")
        templates = [
            ((replica or {}).get("template") or {}).get("spec") or {}
            for replica in (self.raw["spec"].get("replicaSpecs") or {}).values()
        ]
        mounts = [
            mount["mountPath"].rstrip("/")
            for template in templates
            for container in template.get("containers") or ()
            for mount in container.get("volumeMounts") or ()
        ]
        return not (output.get("claim") or output.get("store") or directory in mounts)

    @property
    def owner_reference(self) -> Object:
        """For objects that go with the job."""
        return {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": self.name, "uid": self.uid}

    @property
    def gpus(self) -> int | None:
        """GPUs of all pods together; None for a spec that the operator has refused for what it says of pods."""
        # Validating the trainer's settings would take most of the time; here counts only that there is a trainer.
        rest = {key: value for key, value in self.raw["spec"].items() if key != "trainer"}
        try:
            spec = _spec(rest).model_copy(update={"trainer": self.raw["spec"].get("trainer")})
            return sum(
                gpu_time.gpus_held(spec, role, replica) * replica.replicas
                for role, replica in replica_specs(spec).items()
            )
        except ValueError:
            return None

    def gpu_seconds(self, now: datetime) -> int:
        """GPUs × seconds that the pods of all attempts have held them, until `now`."""
        return gpu_time.seconds(self.raw.get("status") or {}, now)

    @property
    def pod_selector(self) -> str:
        """Label selector of its pods."""
        return f"{names.LABEL_JOB_NAME}={self.name}"


def _spec(raw: Object) -> JobSpec:
    return JobSpec.model_validate(raw, by_alias=True, by_name=False, extra="ignore")


def check(job: Object) -> None:
    """Raises InvalidJobError for one that the operator would refuse."""
    # Whether host access is allowed is known to the operator only.
    found = parse_job(job, allow_host=True)
    if not isinstance(found, JobSpec):
        raise InvalidJobError(found)
