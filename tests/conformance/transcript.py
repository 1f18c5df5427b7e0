"""What a script saw, reduced to what must be the same on every server.

Uids and resourceVersions become numbers in order of appearance, times become `<time>`, and objects keep only what the
harness models.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tfgpujob.kube.errors import ApiError

_META = ("name", "labels", "annotations", "finalizers", "generation", "deletionGracePeriodSeconds")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_FIELD = re.compile(
    r"([A-Za-z][\w./\[\]…-]*): (Invalid value|Required value|Forbidden|Unsupported value|Not found|Duplicate|Too long)"
)
_WORDED = ("AlreadyExists", "NotFound", "Forbidden")
"""The refusals whose words reach people through conditions, or decide something: compared to the letter."""


class Transcript:
    def __init__(self, namespace: str) -> None:
        self.entries: list[dict[str, Any]] = []
        self._namespace = namespace
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def note(self, what: str, value: Any) -> None:
        self.entries.append({"call": what, "is": self._plain(value)})

    def call(self, what: str, request: Callable[[], Any]) -> Any:
        """Make the request and note its answer or refusal; returns the answer, None when refused."""
        try:
            answer = request()
        except ApiError as refusal:
            self.entries.append({"call": what, "refused": self._refusal(refusal)})
            return None
        self.note(what, answer)
        return answer

    async def acall(self, what: str, request: Callable[[], Awaitable[Any]]) -> Any:
        """The same for one of the operator's own requests."""
        try:
            answer = await request()
        except ApiError as refusal:
            self.entries.append({"call": what, "refused": self._refusal(refusal)})
            return None
        self.note(what, answer)
        return answer

    def _refusal(self, refusal: ApiError) -> dict[str, Any]:
        seen: dict[str, Any] = {"code": refusal.code, "reason": refusal.reason}
        if refusal.reason in _WORDED:
            message = _UID.sub(lambda uid: self._uid(uid.group()), refusal.message)
            seen["message"] = message.replace(self._namespace, "<namespace>")
        if refusal.reason == "Invalid":
            fields = {re.sub(r"\[[\w/.…-]*\]", "[]", field) for field, _ in _FIELD.findall(refusal.message)}
            seen["fields"] = sorted(fields)
        return seen

    def _plain(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if isinstance(value, Mapping) and "metadata" in value:
            return self._object(value)
        return value

    def _object(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        meta = obj["metadata"]
        plain: dict[str, Any] = {key: meta[key] for key in _META if meta.get(key)}
        plain["uid"] = self._uid(meta["uid"])
        plain["version"] = self._versions.setdefault(meta["resourceVersion"], f"version {len(self._versions)}")
        if "deletionTimestamp" in meta:
            plain["deletionTimestamp"] = "<time>"
        if meta.get("ownerReferences"):
            plain["owners"] = [self._uid(reference["uid"]) for reference in meta["ownerReferences"]]
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        for field in ("strategy", "image", "nodeName", "hostname", "subdomain", "clusterIP", "holderIdentity"):
            if field in spec:
                plain[field] = spec[field]
        if "phase" in status:
            plain["phase"] = status["phase"]
        return plain

    def _uid(self, uid: str) -> str:
        return self._uids.setdefault(uid, f"uid {len(self._uids)}")
