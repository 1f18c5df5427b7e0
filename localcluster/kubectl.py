"""Objects by path, on whatever cluster a kubeconfig names. The official client logs in; the dicts stay raw."""

import json
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient

Object = dict[str, Any]
TIMEOUT = 60


class KubeError(Exception):
    """The API server refused."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Kube:
    """GET, POST and DELETE."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client: ApiClient = config.new_client_from_config(str(kubeconfig))

    def get(self, path: str) -> Object:
        answer: Object = json.loads(self._request("GET", path))
        return answer

    def find(self, path: str) -> Object | None:
        """None if there is no such object."""
        try:
            return self.get(path)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        answer: Object = json.loads(self._request("POST", path, body))
        return answer

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def text(self, path: str) -> str:
        """The answer as it is: a log."""
        return self._request("GET", path).decode(errors="replace")

    def _request(self, method: str, path: str, body: Object | None = None) -> bytes:
        headers = {"Accept": "application/json, */*", "Content-Type": "application/json"}
        request = self._client.param_serialize(
            method, path, body=body, header_params=headers, auth_settings=["BearerToken"]
        )
        response = self._client.call_api(*request, _request_timeout=TIMEOUT)
        data: bytes = response.read()
        if response.status >= 400:
            raise KubeError(response.status, _message(data))
        return data


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace")
