"""How a job behaves, in plain sentences. Each describes a policy of `core`; none decides anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tfgpujob.api import (
    CleanPodPolicy,
    GpuSpec,
    JobSpec,
    RestartPolicy,
    StartPolicy,
    SuccessPolicy,
    TopologyMode,
    gpus,
    replicas_in_sync,
)
from tfgpujob.api.strategies import Work
from tfgpujob.core.observed.plan import Plan, replica_specs
from tfgpujob.core.pods import in_place
from tfgpujob.core.policies.restart.backoff_limit import DISRUPTIONS_IN_A_ROW
from tfgpujob.core.policies.restart.failure import FIRST_RETRYABLE
from tfgpujob.names import SUPERVISE, Role
from tfgpujob.units import counted, duration
from tfgpujob_contract.strategies import Strategy
from tfgpujob_contract.trainer_config import TrainerConfig

_POLICIES = {
    RestartPolicy.NEVER: "a failure ends the job",
    RestartPolicy.ON_FAILURE: "every failure is followed by a restart",
    RestartPolicy.ALWAYS: "every failure is followed by a restart",
    RestartPolicy.EXIT_CODE: f"an exit code below {FIRST_RETRYABLE} (an error in the program) ends the job, one of "
    f"{FIRST_RETRYABLE} and above (a signal, a lost peer) is followed by a restart",
}
_CLEAN_UP = {
    CleanPodPolicy.AUTO: "ps and evaluator pods and whatever still runs are deleted; finished chiefs and workers stay, "
    "for their logs",
    CleanPodPolicy.RUNNING: "whatever still runs is deleted",
    CleanPodPolicy.ALL: "all pods are deleted",
    CleanPodPolicy.NONE: "no pod is deleted, and parameter servers keep their GPUs",
}


def sentences(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    """(topic, sentence), in the order of a job's life."""
    yield from _start(spec, plan)
    yield from _room(spec, plan)
    if spec.trainer is not None:
        yield from _preparation(spec.trainer)
        yield from _training(spec, spec.trainer, plan)
    else:
        yield from _gpu_memory(spec)
        yield from _own_program(spec)
    yield "success", _success(spec, plan)
    yield from _failure(spec, plan)
    yield from _end(spec)
    yield "strategy", strategy_advice(spec, plan)


def _devices(spec: JobSpec, plan: Plan) -> dict[Role, int]:
    """GPUs of a pod, or 1 for its CPU, for each role that trains in step."""
    specs = replica_specs(spec)
    return {r: max(1, gpus(spec, r, specs[r])) for r in (Role.CHIEF, Role.WORKER) if r in plan.counts}


def _start(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    policy, required = spec.run_policy, len(plan.members.required)
    if policy.suspend:
        yield "start", "spec.runPolicy.suspend is on: nothing is created until it is off."
    pods = "The pod is" if required == 1 else f"All {required} required pods are"
    late = "the job fails" if policy.start_policy is StartPolicy.FAIL else "all is released and tried again later"
    limit, timeout = duration(policy.start_deadline_seconds), policy.schedule_timeout_seconds
    on_nodes = f"on nodes within {duration(timeout)} (scheduleTimeoutSeconds) and " if timeout is not None else ""
    yield "start", f"{pods} created at once; when not {on_nodes}ready within {limit} (startDeadlineSeconds), {late}."
    if policy.scheduling_policy is not None and policy.scheduling_policy.topology_key is not None:
        must = policy.scheduling_policy.topology_mode is TopologyMode.REQUIRED
        where = f"nodes with one value of the label {policy.scheduling_policy.topology_key}"
        yield "start", f"They are placed on {where}{'' if must else ', where that can be done'}."
    if Role.EVALUATOR in plan.counts:
        yield "start", "The evaluator is never waited for, and its failures cost the job nothing."
    yield from _volumes(spec, plan)
    yield from _device_claim(spec, plan)


def _device_claim(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    claim, specs = spec.gpu.claim, replica_specs(spec)
    if claim is None:
        yield from _slices(spec, plan)
        return
    with_claim = [str(role) for role in plan.counts if gpus(spec, role, specs[role])]
    choices = [choice.device_class_name for choice in claim.first_available or ()]
    which = f"of the template {claim.template_name}" if claim.template_name else f"from {claim.device_class_name}"
    which = f"from the first that is free of {', '.join(choices)}" if choices else which
    each = f"Each {' and '.join(with_claim)}" if with_claim else "No pod"
    yield "GPUs", f"{each} gets {counted(claim.count or 1, 'device')} by a resource claim {which}."
    without = [str(role) for role in plan.counts if str(role) not in with_claim]
    if without:
        yield "GPUs", f"The {' and '.join(without)} gets no claim and runs on the CPU."


def _volumes(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    for role, replica in replica_specs(spec).items():
        if replica.volume_claim_templates and role in plan.counts:
            each = ", ".join(f"{claim.metadata.name}-<pod>" for claim in replica.volume_claim_templates)
            end = "go with the job" if replica.owns_claims else "stay when the job is deleted"
            yield "volumes", f"Each {role} has claims of its own in every attempt: {each}. They {end}."


def _slices(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    """GPU resources other than a whole NVIDIA GPU."""
    resource, specs = spec.gpu.resource_name, replica_specs(spec)
    if resource != GpuSpec().resource_name and any(gpus(spec, role, specs[role]) for role in plan.counts):
        yield "GPUs", f"Pods ask for {resource}. GPU time counts these, whatever share of a GPU each is."


def _gpu_memory(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """What spec.gpu.memory does for a program other than the trainer."""
    memory = spec.gpu.memory
    if memory.growth:
        yield "GPU memory", "TensorFlow takes it as it is needed: TF_FORCE_GPU_ALLOW_GROWTH is set for your program."
    elif memory.limit_mib is not None:
        yield (
            "GPU memory",
            (
                f"Your program must limit itself to the {memory.limit_mib} MiB of gpu.memory.limitMiB, which it finds "
                "in TFGPU_GPU_MEMORY_LIMIT_MIB: TensorFlow reads no such variable."
            ),
        )
    elif memory.growth is False:
        yield "GPU memory", "gpu.memory.growth: false leaves it to your program, as without the field."


def _own_program(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Requirements on a program that is restarted in its pod."""
    if in_place.supervises(spec, Role.WORKER):
        stops = "At SIGTERM it must stop after a step, save and exit with 143"
        why = "start again in its pod, with the TF_CONFIG of its next round"
        yield "work", f"Your command is run by {SUPERVISE}, which the image must have. {stops}, to {why}."


def _room(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    """What an elastic job does when capacity is missing."""
    if plan.members.spares:
        pods = counted(plan.members.spares, "spare pod more", "spare pods more")
        yield (
            "start",
            f"The start does not wait for {pods}, which hold their GPUs beside the others (runPolicy.spares).",
        )
    policy = spec.run_policy.elastic_policy
    if policy is None or not spec.elastic:
        return
    least, wanted = spec.replica_specs.least_workers, plan.counts[Role.WORKER]
    if least < wanted:
        after = duration(policy.shrink_after_seconds)
        yield "start", f"If not all {wanted} workers have a node after {after}, it begins with {least} or more that do."
    if spec.workers_come_and_go:
        yield "start", f"A worker that finds a node later joins the others, which {plan.members.verb} on."
    elif policy.grow_after_seconds is not None and in_place.changes_in_place(spec, plan):
        every = duration(policy.grow_after_seconds)
        yield "start", f"It takes in others when there is room for them, every {every} at most (growAfterSeconds)."


def _preparation(trainer: TrainerConfig) -> Iterator[tuple[str, str]]:
    """What is fetched before the program starts."""
    if trainer.code is not None and trainer.code.git is not None:
        yield "start", f"Each pod first fetches the commit {trainer.code.git.revision} of {trainer.code.git.url}."
    images = {"code": trainer.code and trainer.code.image, "models": trainer.models and trainer.models.image}
    if from_images := " and ".join(f"/{part} of {image} as /{part}" for part, image in images.items() if image):
        yield "start", f"Pods have {from_images}: as a volume where every node can mount images, else copied first."
    if trainer.requirements is not None:
        kept = "keeps it for the next attempt" if trainer.output.claim else "is lost with its pod: set output.claim"
        what = "what trainer.requirements asks for and the image lacks"
        yield "start", f"Before the program starts, pip installs {what}; {trainer.output.directory} {kept}."


def _training(spec: JobSpec, trainer: TrainerConfig, plan: Plan) -> Iterator[tuple[str, str]]:
    if spec.predicts:
        workers = counted(plan.counts[Role.WORKER], "worker")
        how = "each of which takes the next part that no other has" if spec.shares_parts else "each on its own"
        yield "work", f"The rows of data('predict') are shared among {workers}, {how}."
    elif trainer.global_batch_size is None:
        says = f"{trainer.entrypoint} says how long it trains and how many examples a step takes"
        yield "work", f"{says}. With fit(), {_saves(trainer)}; a training loop of its own saves by itself."
        if trainer.args is not None:
            yield "work", f"It is run with the arguments {shlex.join(trainer.args)}."
        return
    elif spec.traits.work is Work.SYNCHRONOUS:
        yield "work", f"Each step takes {batch(trainer.global_batch_size, trainer, replicas_in_sync(spec))}."
    length = counted(trainer.epochs, "epoch") if trainer.epochs else counted(trainer.steps or 0, "step")
    if not spec.predicts:
        yield "work", f"It trains for {length} and then evaluates data('test'); {_saves(trainer)}."


def batch(total: int, trainer: TrainerConfig, replicas: int) -> str:
    """`128 examples: 64 on each of 2 replicas`, as the trainer splits it."""
    parts = replicas * (trainer.accumulate or 1)
    each = f"{total // parts}" if total % parts == 0 else f"{total // parts} or {total // parts + 1}"
    where = "on one replica" if replicas == 1 else f"on each of {replicas} replicas"
    micro = f", {trainer.accumulate} times one after another" if (trainer.accumulate or 1) > 1 else ""
    return f"{counted(total, 'example')}: {each} {where}{micro}"


def _saves(trainer: TrainerConfig) -> str:
    every = [
        *([_each(trainer.checkpoint.every_steps, "step")] if trainer.checkpoint.every_steps else []),
        *([_each(trainer.checkpoint.every_epochs, "epoch")] if trainer.checkpoint.every_epochs else []),
        *([duration(trainer.checkpoint.every_seconds)] if trainer.checkpoint.every_seconds else []),
    ]
    keep = trainer.checkpoint.keep
    kept = "the last one is kept" if keep == 1 else f"the last {keep} are kept"
    return f"it saves every {' and every '.join(every) or 'epoch'}, and {kept}"


def _each(count: int, what: str) -> str:
    return what if count == 1 else f"{count} {what}s"


def _success(spec: JobSpec, plan: Plan) -> str:
    workers = plan.counts.get(Role.WORKER, 0)
    if spec.shares_parts:
        return "The job has succeeded when a worker has exited with 0, which it does once all rows are there."
    if workers > 1 and (spec.predicts or spec.success_policy is SuccessPolicy.ALL_WORKERS):
        return f"The job has succeeded when all {workers} workers have exited with 0."
    who = "the chief" if plan.counts.get(Role.CHIEF) else ("worker 0" if workers > 1 else "its worker")
    return f"The job has succeeded when {who} has exited with 0."


def _failure(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    policies = {role: spec.restart_policy for role, spec in replica_specs(spec).items() if role is not Role.EVALUATOR}
    for policy in dict.fromkeys(policies.values()):
        who = " or ".join(str(role) for role, its in policies.items() if its is policy)
        yield "failure", f"When a {who} fails, {_POLICIES[policy]}."
    recover = [role for role, its in replica_specs(spec).items() if in_place.recovers_in_place(spec, role, its)]
    if recover and spec.traits.work is Work.PARAMETER_SERVERS:
        yield (
            "failure",
            "First its process is started again in its pod, at once, with a ps the chief's too (runPolicy.recovery).",
        )
    elif recover:
        yield "failure", "First its processes are restarted in their pods, at once (runPolicy.recovery)."
    yield "failure", f"What starts again: {_scope(spec, plan)}."
    if spec.shares_parts:
        yield "failure", "The other workers do the part of one that fails or is lost."
    if in_place.replaces_lost_pods(spec, plan):
        yield from _lost_pods(spec, plan)
    restarts = counted(spec.run_policy.backoff_limit, "restart is", "restarts are")
    yield (
        "failure",
        (
            f"{restarts} allowed (backoffLimit), after 10s, then twice as long each time, up to 6m. "
            f"Evictions, preemptions and lost nodes are not counted, unless {DISRUPTIONS_IN_A_ROW} come in a row."
        ),
    )


def _lost_pods(spec: JobSpec, plan: Plan) -> Iterator[tuple[str, str]]:
    """What the loss of each pod costs a gang that keeps the others."""
    leader = "the chief" if plan.members.chief[0] is Role.CHIEF else "worker 0"
    if len(plan.members.required) == 1 and not plan.members.spares:
        yield "failure", "If its only pod is lost, so is the copy in memory, and it continues from the last checkpoint."
        return
    yield "failure", "If a pod is lost, only that pod is created again; the others keep theirs."
    if spec.trainer is None:
        yield "failure", "It continues from the program's last checkpoint."
    else:
        yield "failure", "The steps since the newest copy in the memory of the other workers are computed again."
    if spec.trainer is not None and spec.trainer.may_be_script:
        yield "failure", "A script has copies of the fit() that runs; with keras.distribution it has none."
    yield "failure", f"While the pod of {leader} is created again, the others wait."
    if plan.members.spares:
        yield "failure", "A spare replaces any other lost pod, and the new pod becomes a spare."
    elif spec.elastic:
        least = counted(spec.replica_specs.least_workers, "worker")
        yield "failure", f"While any other pod is created again, the rest train on, if at least {least} are left."


def _scope(spec: JobSpec, plan: Plan) -> str:
    if not spec.restarts_alone:
        return "all replicas" if len(plan.members.required) > 1 else "its one replica"
    if spec.traits.work is Work.PARAMETER_SERVERS:
        return "the failed replica alone; with a ps also the chief, which restores the variables"
    return "the failed replica alone"


def _end(spec: JobSpec) -> Iterator[tuple[str, str]]:
    policy = spec.run_policy
    if policy.active_deadline_seconds is not None:
        limit = duration(policy.active_deadline_seconds)
        yield "end", f"The job fails when it has been active for {limit}, restarts included (activeDeadlineSeconds)."
    else:
        yield "end", "There is no limit on how long it runs (activeDeadlineSeconds)."
    yield "end", f"When it is over, {_CLEAN_UP[policy.clean_pod_policy]} (cleanPodPolicy)."
    if policy.ttl_seconds_after_finished is not None:
        yield (
            "end",
            f"{duration(policy.ttl_seconds_after_finished)} later the job is deleted, its pods and logs with it.",
        )


def strategy_advice(spec: JobSpec, plan: Plan) -> str:
    """Which strategy would suit, and why."""
    if spec.predicts:
        return "Predicting needs no strategy: the workers don't talk to each other."
    if spec.traits.advice:
        return spec.traits.advice
    devices = sum(plan.counts[role] * per_pod for role, per_pod in _devices(spec, plan).items())
    if replicas_in_sync(spec) > devices:
        return "Several processes on a GPU pay only where one leaves it idle: measure both."
    pods = sum(plan.counts[role] for role in _devices(spec, plan))
    return _synchronous_advice(spec.strategy, devices, pods)


def _synchronous_advice(strategy: Strategy, devices: int, pods: int) -> str:
    if devices == 1 and strategy is not Strategy.ONE_DEVICE:
        return f"With one device, OneDevice computes what {strategy} does."
    if strategy is not Strategy.MULTI_WORKER_MIRRORED:
        return f"{strategy} suits {'one device' if devices == 1 else f'{devices} GPUs of one pod'}."
    if pods == 1:
        return "With one pod, Mirrored does the same, without a server for other workers."
    return (
        f"MultiWorkerMirrored suits {devices} devices in {pods} pods. Where one node has {devices} GPUs, Mirrored "
        f"with one worker of {devices} GPUs gives the same result, and keeps the all-reduce off the network."
    )
