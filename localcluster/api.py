"""A very small client of the API server: requests, and list-then-watch. Raw dicts, standard library only.

The official client is not used here: it takes a second to import, which every node would pay.
"""

import base64
import json
import ssl
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
Key = tuple[str, str]


class Api:
    """Requests with the server and the client certificate that a kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = str(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pem.write(base64.b64decode(user["client-certificate-data"]))
            pem.write(base64.b64decode(user["client-key-data"]))
            pem.flush()
            context.load_cert_chain(pem.name)
        # The cluster is on this machine, so a proxy of the environment must not be asked.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def open(self, path: str, *, method: str = "GET", body: Object | None = None, timeout: float = 10) -> Any:
        """The open response. Raises urllib.error.HTTPError for an answer ≥ 400, OSError for none."""
        request = urllib.request.Request(  # noqa: S310 - the address is our own kubeconfig's
            self.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return self._opener.open(request, timeout=timeout)

    def call(self, path: str, *, method: str = "GET", body: Object | None = None) -> Object:
        """The answer as a dict."""
        with self.open(path, method=method, body=body) as response:
            answer: Object = json.load(response)
            return answer

    def create(self, path: str, body: Object) -> None:
        """Create an object; one of that name that is already there is left as it is."""
        try:
            self.call(path, method="POST", body=body)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def ready(self) -> bool:
        """Whether the API server says that it can serve."""
        try:
            with self.open("/readyz", timeout=2):
                return True
        except OSError:
            return False


class Watched:
    """Objects of one resource, kept up to date by list and watch in a thread of its own."""

    def __init__(self, api: Api, path: str, changed: Callable[[], None]) -> None:
        self.objects: dict[Key, Object] = {}
        self._api, self._path, self._changed = api, path, changed

    def start(self) -> None:
        """Begin; `changed` is called after every change, in the watching thread."""
        threading.Thread(target=self._run, daemon=True, name=self._path).start()

    def _run(self) -> None:
        while True:
            try:
                self._watch(self._list())
            except (OSError, ValueError, KeyError) as error:
                print(self._path, repr(error), file=sys.stderr, flush=True)
                time.sleep(0.5)

    def _list(self) -> str:
        answer = self._api.call(self._path)
        self.objects = {_key(item): item for item in answer["items"]}
        self._changed()
        return str(answer["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        query = f"{self._path}?watch=1&resourceVersion={version}&timeoutSeconds=3600"
        with self._api.open(query, timeout=3700) as lines:
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                objects = dict(self.objects)
                if event["type"] == "DELETED":
                    objects.pop(_key(event["object"]), None)
                else:
                    objects[_key(event["object"])] = event["object"]
                self.objects = objects
                self._changed()


def _key(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
