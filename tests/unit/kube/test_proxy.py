"""The proxy of the environment, as kubectl reads it."""

from __future__ import annotations

import pytest

from tfgpujob.kube.proxy import proxy_of

PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("server", "environment", "expected"),
    [
        ("https://k8s.example.com:6443", {}, None),
        ("https://k8s.example.com:6443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://k8s.example.com:6443", {"https_proxy": "proxy.example.com:3128"}, PROXY),
        ("https://k8s.example.com:6443", {"HTTP_PROXY": PROXY}, None),
        ("http://k8s.example.com", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://10.3.0.1:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "192.168.0.0/16, 10.0.0.0/8"}, None),
        ("https://11.3.0.1:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "192.168.0.0/16, 10.0.0.0/8"}, PROXY),
        ("https://k8s.example.com", {"HTTPS_PROXY": PROXY, "no_proxy": "example.com"}, None),
        ("https://k8s.example.com", {"HTTPS_PROXY": PROXY, "no_proxy": ".example.com"}, None),
        ("https://k8s.example.com", {"HTTPS_PROXY": PROXY, "no_proxy": "*.example.com"}, None),
        ("https://example.com", {"HTTPS_PROXY": PROXY, "no_proxy": "example.com"}, None),
        ("https://badexample.com", {"HTTPS_PROXY": PROXY, "no_proxy": "example.com"}, PROXY),
        ("https://k8s.example.com:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "k8s.example.com:6443"}, None),
        ("https://k8s.example.com:443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "k8s.example.com:6443"}, PROXY),
        ("https://k8s.example.com", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
    ],
)
def test_the_proxy_of_a_server(server: str, environment: dict[str, str], expected: str | None) -> None:
    assert proxy_of(server, environment) == expected
