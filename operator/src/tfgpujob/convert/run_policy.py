"""spec.runPolicy, whose fields were in spec before v1."""

from __future__ import annotations

from typing import Any

from tfgpujob.convert.notes import Effect, Part

_SAME = ("ttlSecondsAfterFinished", "suspend")
_KNOWN = ("cleanPodPolicy", "activeDeadlineSeconds", "backoffLimit", *_SAME)
_MANAGED_BY_THEM = "kubeflow.org/training-operator"
_NO_CLEAN_UP = (
    "absent, it meant None, and Running before release 1.6; here it means Auto: ps, evaluator and running pods go when "
    "the job has ended"
)
_SCHEDULING = ("minAvailable", "queue", "minResources", "priorityClass", "scheduleTimeoutSeconds")


def convert_run_policy(spec: Part) -> dict[str, Any]:
    """The runPolicy of the TFGPUJob, with a managedBy that belongs in its spec. `spec` is the TFJob's spec."""
    policy = spec.part("runPolicy")
    for key in (key for key in _KNOWN if key in policy):
        spec.drop(f"{policy.at(key)} says it too, and counts", key)
    sources = {key: policy if key in policy else spec for key in _KNOWN}
    target: dict[str, Any] = {}
    _clean_up(sources["cleanPodPolicy"], policy, target)
    for key in _SAME:
        sources[key].move(target, key)
    _deadline(sources["activeDeadlineSeconds"], target)
    _backoff(sources["backoffLimit"], policy, target)
    _managed_by(policy, target)
    _scheduling(policy, target)
    policy.close()
    return target


def _clean_up(source: Part, policy: Part, target: dict[str, Any]) -> None:
    key = "cleanPodPolicy"
    value = source.take(key)
    if value not in (None, "", "Undefined"):
        target[key] = value
        return
    policy.note(Effect.CHANGED, key, _NO_CLEAN_UP)
    if value is not None and source is not policy:
        source.note(Effect.NO_EFFECT, key, "says nothing")


def _deadline(source: Part, target: dict[str, Any]) -> None:
    source.move(target, "activeDeadlineSeconds")
    if "activeDeadlineSeconds" in target:
        text = "is kept to the second; a TFJob notices only when something else happens to it"
        source.note(Effect.CHANGED, "activeDeadlineSeconds", text)


def _backoff(source: Part, policy: Part, target: dict[str, Any]) -> None:
    source.move(target, "backoffLimit")
    if "backoffLimit" in target:
        text = "counts every restart; a TFJob counts only containers that restart in place"
        source.note(Effect.CHANGED, "backoffLimit", text)
    else:
        policy.note(Effect.CHANGED, "backoffLimit", "absent, it meant no limit; here it means 6 restarts")


def _managed_by(policy: Part, target: dict[str, Any]) -> None:
    value = policy.take("managedBy")
    if value == _MANAGED_BY_THEM:
        policy.note(Effect.CHANGED, "managedBy", "is left out: absent means tfgpu.dev/operator")
    elif value is not None:
        policy.note(Effect.CHANGED, "managedBy", "is spec.managedBy here, where MultiKueue looks for it")
        target["managedBy"] = value


def _scheduling(policy: Part, target: dict[str, Any]) -> None:
    if "schedulingPolicy" not in policy:
        policy.take("schedulingPolicy")
        return
    source = policy.part("schedulingPolicy")
    wishes: dict[str, Any] = {}
    source.move(wishes, *_SCHEDULING)
    source.close()
    target["schedulingPolicy"] = wishes
    for field in ("queue", "minAvailable", "minResources"):
        if field in wishes:
            text = "goes into a pod group, if the operator here is set up for the gang scheduler (gang.backends)"
            source.note(Effect.CHANGED, field, text)
    if "scheduleTimeoutSeconds" in wishes:
        text = "is the operator's: pods without a node by then are released with all the others, and tried again"
        source.note(Effect.CHANGED, "scheduleTimeoutSeconds", text)
