"""The pages in the operator's pod: who sees what, by page and by history, and who sees nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from tests.unit.ui.callers import ANY, Api, bearer, page
from tests.unit.ui.hostile import HOSTILE, MAX_PAGE, Reader, poisoned_job
from tests.unit.ui.planted import NOW, condition, job

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.history.database import Database
from tfgpujob.history.records import Last, Record, freeze, freeze_curves
from tfgpujob.names import TOKEN_HEADER
from tfgpujob.ui import in_pod
from tfgpujob.ui.seen import Seen

Client = TestClient[web.Request, web.Application]
FAILURE = {
    "role": "worker",
    "index": 1,
    "cause": "OutOfMemory",
    "message": "OOM when allocating tensor",
    "action": "Use a smaller batch.",
}
STATUS = {
    "phase": "Failed",
    "lastFailure": FAILURE,
    "conditions": [
        condition("Failed", "True", "ReplicaFailed", "worker-1 failed.", 5),
        condition("Finished", "True", "Failed", "worker-1 failed.", 5),
    ],
}
CURVES = b'{"train": {"names": ["loss"], "points": [[1, 2.5], [2, 2.0]]}, "validation": {"names": [], "points": []}}'
LIVE = [job("running", {"phase": "Running"}, namespace="ours"), job("theirs", {}, namespace="theirs")]


def record(found: Object, **changed: Any) -> Record:
    frozen = freeze(Last(found, (), NOW))
    fields = {name: getattr(frozen, name) for name in ("uid", "namespace", "name", "created", "seen", "content")}
    return Record(**fields | changed)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    kept = Database(f"sqlite:///{tmp_path}/history.db")
    gone = [job("gone", STATUS, namespace="ours"), job("secret", STATUS, namespace="theirs")]
    kept.write([*map(record, gone), record(LIVE[0])], {"uid-gone": freeze_curves(CURVES)})
    return kept


def api(**rights: Sequence[str]) -> Api:
    return Api(rights, LIVE)


async def text_of(client: Client, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with client.get(path, headers=headers or {}, allow_redirects=False) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"] or path.startswith("/none/")
        return answer.status, await answer.text()


async def log_in(client: Client, token: str, namespace: str = "", **headers: str) -> tuple[int, str, str]:
    """Status, cookie and page."""
    form = {"token": token, "namespace": namespace}
    async with client.post("/login", data=form, headers=headers, allow_redirects=False) as answer:
        return answer.status, answer.headers.get("Set-Cookie", ""), await answer.text()


PAGES = ("/", "/jobs/ours/running", "/jobs/ours/gone", "/jobs/theirs/secret", "/compare?job=ours/gone", "/history")


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer unknown"},
        {"Authorization": "Basic YTpi"},
        {TOKEN_HEADER: "Bearer a b"},
        {"Cookie": "tfgpu=guessed"},
    ],
    ids=str,
)
async def test_without_a_token_that_the_api_server_knows_nothing_is_shown(
    path: str, headers: dict[str, str], database: Database
) -> None:
    async with page(api(all=[ANY]), database) as client:
        status, text = await text_of(client, path, headers)
    assert status == 401
    assert not re.search("gone|running|secret|theirs|ours", text)


async def test_a_caller_sees_live_and_deleted_jobs_of_the_namespaces_that_it_may_get(database: Database) -> None:
    async with page(api(all=[ANY], ours=["ours"], none=[]), database) as client:
        _, everything = await text_of(client, "/", bearer("all"))
        assert {">running</a>", ">theirs</a>", ">gone</a>", ">secret</a>"} <= {*re.findall(r">\w+</a>", everything)}
        assert everything.count(">running</a>") == 1, "a live job is not shown a second time, as of the history"
        _, own = await text_of(client, "/", bearer("ours"))
        assert {">running</a>", ">gone</a>"} <= {*re.findall(r">\w+</a>", own)}
        _, nothing = await text_of(client, "/", bearer("none"))
    for text in (own, nothing):
        assert "secret" not in text
        assert "theirs" not in text
    assert "gone" not in nothing


@pytest.mark.parametrize("key", ["secret", "secret@uid-secret", "theirs", "none"])
async def test_a_job_of_another_namespace_is_no_job(key: str, database: Database) -> None:
    async with page(api(ours=["ours"]), database) as client:
        for path in (f"/jobs/theirs/{key}", f"/compare?job=theirs/{key}"):
            status, text = await text_of(client, path, bearer("ours"))
            assert status in {404, 502}
            assert "OOM" not in text
        for query in ("namespace=theirs", "name=secret", "namespace=theirs&name=secret"):
            async with client.get(f"/history?{query}", headers=bearer("ours")) as answer:
                assert (await answer.json())["items"] == []
        _, text = await text_of(client, "/jobs/ours/gone@uid-secret", bearer("ours"))
    assert "OOM" not in text, "a right in one namespace gives none to a job of another"


async def test_the_cause_stands_on_the_page_of_a_job_that_is_gone(database: Database) -> None:
    async with page(api(ours=["ours"]), database) as client:
        for key in ("gone", "gone@uid-gone"):
            status, text = await text_of(client, f"/jobs/ours/{key}", bearer("ours"))
            assert status == 200
            shown = " ".join("".join(Reader(text).texts).split())
            assert "Failed, deleted" in shown
            assert "OutOfMemory" in shown
            assert "Use a smaller batch." in shown
            assert "tfgpu restart" not in shown
            assert "loss by step" in shown, "its curves"
            assert "data-live" not in text
        async with client.get("/history?name=gone", headers={TOKEN_HEADER: "Bearer ours"}) as answer:
            (item,) = (await answer.json())["items"]
    assert (item["metadata"]["name"], item["gone"]) == ("gone", "2026-03-04T15:20:00Z")


async def test_a_login_is_a_cookie_that_scripts_and_other_sites_do_not_get(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = api(ours=["ours"])
    async with page(server, database) as client:
        status, cookie, _ = await log_in(client, "ours", "ours")
        assert status == 303
        assert {"HttpOnly", "SameSite=Strict", "Max-Age=3600", "Path=/"} <= {*cookie.split("; ")}
        assert "ours" not in cookie
        assert ">gone</a>" in (await text_of(client, "/"))[1]
        server.rights.clear()
        assert (await text_of(client, "/"))[0] == 401, "the API server knows the token no more"
        server.rights["ours"] = ["ours"]
        assert (await text_of(client, "/"))[0] == 401, "and that ended the login"
        monkeypatch.setattr(in_pod, "SESSION_SECONDS", -1)
        _, cookie, _ = await log_in(client, "ours", "ours")
        assert (await text_of(client, "/", {"Cookie": cookie.partition(";")[0]}))[0] == 401, "its time is over"


async def test_a_login_ends_when_its_owner_says_so(database: Database) -> None:
    async with page(api(ours=["ours"]), database) as client:
        _, cookie, _ = await log_in(client, "ours", "ours")
        kept = {"Cookie": cookie.partition(";")[0]}
        for path, action in (("/", "./logout"), ("/jobs/ours/running", "../../logout")):
            assert Reader((await text_of(client, path, kept))[1]).all_of("form", action=action, method="post")
        async with client.post("/logout", headers={**kept, "Sec-Fetch-Site": "cross-site"}) as answer:
            assert (answer.status, (await text_of(client, "/", kept))[0]) == (403, 200)
        async with client.post("/logout", headers=kept, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "./")
            assert "Max-Age=0" in answer.headers["Set-Cookie"]
        status, text = await text_of(client, "/", kept)
    assert (status, "logout" in text) == (401, False)


async def test_a_login_over_an_encrypted_proxy_is_for_encrypted_connections_alone(database: Database) -> None:
    async with page(api(ours=["ours"]), database) as client:
        _, cookie, _ = await log_in(client, "ours", **{"X-Forwarded-Proto": "https"})
    assert "Secure" in cookie.split("; ")


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example.com"}],
    ids=str,
)
async def test_another_site_can_not_log_anyone_in(headers: dict[str, str], database: Database) -> None:
    async with page(api(ours=["ours"]), database) as client:
        status, cookie, _ = await log_in(client, "ours", **headers)
    assert (status, cookie) == (403, "")


@pytest.mark.parametrize("text", HOSTILE[:-1], ids=lambda text: ascii(text[:20]))
async def test_hostile_logins_are_refused(text: str, database: Database) -> None:
    server = api(ours=["ours"])
    clean = text.encode("utf-8", "replace").decode()
    async with page(server, database) as client:
        for token, namespace in ((clean, "ours"), ("ours", clean), ("x" * 20_000, "ours"), ("unknown", "ours")):
            status, cookie, shown = await log_in(client, token, namespace)
            assert (status, cookie) == (401, "")
            assert not Reader(shown).all_of("img")
        async with client.post("/login", data={"token": "x" * 3_000_000}) as answer:
            assert answer.status == 413
    assert {*server.shown} <= {"ours", "unknown", "x" * 20_000}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
async def test_hostile_records_harm_no_page(text: str, tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/history.db")
    spoilt = poisoned_job(Seen(job=job("bad", STATUS, namespace="ours")), text).job
    metadata = {**spoilt["metadata"], "name": "bad", "namespace": "ours", "uid": "bad"}
    database.write([record({**spoilt, "metadata": metadata})], {"bad": freeze_curves(text.encode("utf-8", "replace"))})
    async with page(api(ours=["ours"]), database) as client:
        for path in ("/jobs/ours/bad", "/?namespace=ours", "/compare?job=ours/bad@bad"):
            status, shown = await text_of(client, path, bearer("ours"))
            assert status == 200
            assert len(shown.encode()) < MAX_PAGE
            read = Reader(shown)
            assert len(read.all_of("script")) == 1
            assert not read.all_of("img")


async def test_a_database_that_is_broken_costs_its_jobs_alone(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_text("no database")
    broken = Database(f"sqlite:///{tmp_path}/history.db")
    async with page(api(all=[ANY]), broken) as client:
        status, text = await text_of(client, "/", bearer("all"))
        assert (status, ">running</a>" in text) == (200, True)
        assert "the history can&#39;t be read now" in text
        assert str(tmp_path) not in text
        assert (await text_of(client, "/jobs/ours/gone", bearer("all")))[0] == 502


async def test_without_a_history_live_jobs_are_shown(database: Database) -> None:
    async with page(api(ours=["ours"]), None) as client:
        await log_in(client, "ours", "ours")
        assert ">running</a>" in (await text_of(client, "/"))[1]
        assert (await text_of(client, "/jobs/ours/gone"))[0] == 404


async def test_who_logs_in_too_often_logs_the_oldest_out(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_pod, "MOST_SESSIONS", 2)
    async with page(api(ours=["ours"]), database) as client:
        _, first, _ = await log_in(client, "ours")
        for _ in range(2):
            await log_in(client, "ours")
        assert (await text_of(client, "/"))[0] == 200
        client.session.cookie_jar.clear()
        assert (await text_of(client, "/", {"Cookie": first.partition(";")[0]}))[0] == 401
