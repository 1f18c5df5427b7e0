"""What the responder answers, asked as a resolver asks it."""

from typing import Any

import pytest
from dnslib import QTYPE, RCODE, DNSRecord
from localcluster.dns import Responder, Zone

SERVICES = [
    {"metadata": {"name": "job", "namespace": "team"}, "spec": {"clusterIP": "None"}},
    {"metadata": {"name": "web", "namespace": "team"}, "spec": {"clusterIP": "10.215.7.7"}},
    {"metadata": {"name": "outside", "namespace": "team"}, "spec": {"type": "ExternalName"}},
]
ENDPOINTS = [
    {
        "metadata": {"name": "job", "namespace": "team"},
        "subsets": [
            {
                "addresses": [{"ip": "10.214.0.5", "hostname": "job-worker-0"}, {"ip": "10.214.1.6"}],
                "ports": [{"name": "grpc", "protocol": "TCP", "port": 2222}],
            }
        ],
    },
    {
        "metadata": {"name": "web", "namespace": "team"},
        "subsets": [{"addresses": [{"ip": "10.214.0.9"}]}],
    },
    {"metadata": {"name": "stray", "namespace": "team"}, "subsets": [{"addresses": [{"ip": "10.214.0.8"}]}]},
]


def ask(name: str, kind: str = "A") -> tuple[str, list[str]]:
    """The reply's code, and what it answers."""
    responder = Responder()
    responder.zone = Zone(SERVICES, ENDPOINTS)
    reply: Any = responder.resolve(DNSRecord.question(name, kind), None)
    return RCODE[reply.header.rcode], [str(answer.rdata) for answer in reply.rr if answer.rtype == QTYPE.reverse[kind]]


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("job-worker-0.job.team.svc.cluster.local", ["10.214.0.5"]),
        ("JOB-worker-0.job.team.svc.cluster.local.", ["10.214.0.5"]),
        ("10-214-1-6.job.team.svc.cluster.local", ["10.214.1.6"]),
        ("job.team.svc.cluster.local", ["10.214.0.5", "10.214.1.6"]),
        ("web.team.svc.cluster.local", ["10.215.7.7"]),
    ],
)
def test_known_names_have_addresses(name: str, addresses: list[str]) -> None:
    assert ask(name) == ("NOERROR", addresses)


@pytest.mark.parametrize(
    "name",
    [
        "job-worker-1.job.team.svc.cluster.local",
        "stray.team.svc.cluster.local",
        "job.team.svc",
        "example.invalid",
    ],
)
def test_unknown_names_do_not_exist(name: str) -> None:
    assert ask(name) == ("NXDOMAIN", [])


def test_a_name_above_known_ones_exists_without_addresses() -> None:
    assert ask("team.svc.cluster.local") == ("NOERROR", [])


def test_a_known_name_has_no_address_of_the_other_family() -> None:
    assert ask("web.team.svc.cluster.local", "AAAA") == ("NOERROR", [])


def test_named_ports_are_service_records() -> None:
    assert ask("_grpc._tcp.job.team.svc.cluster.local", "SRV") == (
        "NOERROR",
        ["0 10 2222 job-worker-0.job.team.svc.cluster.local.", "0 10 2222 10-214-1-6.job.team.svc.cluster.local."],
    )
