"""Pages as functions of what was read: the words of describe, and nothing that others wrote does anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.describe.broken import BROKEN, Broken, known
from tests.unit.ui.hostile import HOSTILE, harmless, poisoned_job
from tests.unit.ui.planted import ALL, DONE, FAILED, NOW, TRAINS, WAITS, Planted, condition, job, pod, report

from tfgpujob.core.observed.trim import trim_job, trim_pod
from tfgpujob.describe import describe
from tfgpujob.history.records import Last, freeze, thaw
from tfgpujob.ui.job_page import JobPage, charts_of, in_order, job_page
from tfgpujob.ui.other_pages import MOST_COMPARED, MOST_ROWS, Filter, ListPage, compare_page, list_page
from tfgpujob.ui.render import html as rendered
from tfgpujob.ui.seen import Seen


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_whatever_others_write_is_shown_and_does_nothing(text: str) -> None:
    seen = poisoned_job(TRAINS, text)
    page = rendered("job.html", job_page(seen, NOW), "../../")
    read = harmless(page)
    if text.startswith("<script"):
        assert text in "".join(read.texts), "people see what was written"
    key = "a/b"
    harmless(rendered("list.html", list_page({key: seen.job}, Filter(text, text, text[:1000]), [text], NOW), "./"))
    harmless(rendered("list.html", list_page({key: seen.job}, Filter(), [text], NOW), "./"))
    harmless(rendered("compare.html", compare_page({key: seen, "c/d": TRAINS}, NOW), "./"))


def test_the_page_has_the_words_of_describe() -> None:
    for seen in ALL:
        page = job_page(seen, NOW)
        told = describe(seen.job, seen.pods, seen.events, seen.nodes, NOW)
        flat = " ".join(told.split())
        for words in (page.state, *page.why, *page.steps, *(text for _, text in page.facts)):
            assert " ".join(words.split()) in flat
        for part in page.time:
            assert part.meaning in told


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.title)
def test_the_cause_and_the_next_step_stand_before_anything_else(broken: Broken) -> None:
    found, pods, events, nodes, now = known(broken)
    page = rendered("job.html", job_page(Seen(job=found, pods=pods, events=events, nodes=nodes), now), "../../")
    words = " ".join("".join(harmless(page.partition('id="facts"')[0]).texts).split())
    assert broken.cause in words
    assert broken.step in words


@pytest.mark.parametrize(
    "broken",  # an operator that is away sees nothing, and keeps nothing
    [broken for broken in BROKEN if broken.title != "The operator is away"],
    ids=lambda broken: broken.title,
)
def test_the_cause_stands_there_an_hour_after_the_job_was_deleted(broken: Broken) -> None:
    found, pods, _, _, now = known(broken)
    record = freeze(Last(trim_job(found), [trim_pod(pod) for pod in pods], now))
    kept = thaw(record.content, record.seen)
    later = now + timedelta(hours=1)
    page = rendered("job.html", job_page(Seen(job=kept.job, logs=kept.logs), later), "../../")
    words = " ".join("".join(harmless(page.partition('id="facts"')[0]).texts).split())
    assert broken.cause in words
    assert ", deleted" in words
    assert "tfgpu " not in words
    assert broken.cause in " ".join(describe(kept.job, (), (), None, later).split())


@pytest.mark.parametrize("seen", ALL, ids=lambda seen: seen.job["metadata"]["name"])
def test_every_table_and_picture_has_a_name_for_who_cannot_see_it(seen: Seen) -> None:
    for page in (
        rendered("job.html", job_page(seen, NOW), "../../"),
        rendered("compare.html", compare_page({"a/b": seen}, NOW)),
        rendered("list.html", list_page({"a/b": seen.job}, Filter(), [], NOW)),
    ):
        read = harmless(page)
        assert page.count("<table") == page.count("<caption")
        ids = [found["id"] for _, found in read.elements if "id" in found]
        assert len(ids) == len({*ids})
        for found in read.all_of("svg", role="img"):
            named = (found.get("aria-labelledby") or "").split()
            assert found.get("aria-label") or (named and {*named} <= {*ids}), found
        assert len(read.all_of("h1")) == 1
        for found in read.all_of("section"):
            assert found.get("aria-label") or found.get("aria-labelledby") in ids or found.get("class") == "unknown"


def page_of(**status: Any) -> JobPage:
    return job_page(Seen(job=job("one", status)), NOW)


def test_a_job_that_nobody_has_looked_at_has_a_page() -> None:
    page = page_of()
    assert (page.state, page.charts, page.time, page.timeline, page.replicas) == ("Not seen", [], [], None, [])
    assert page.live
    harmless(rendered("job.html", page, "../../"))


def test_tones_follow_the_conditions() -> None:
    assert [job_page(seen, NOW).tone for seen in ALL] == ["plain", "waiting", "bad", "good"]
    assert [job_page(seen, NOW).live for seen in ALL] == [True, True, False, False]


PHASES = "Pending 6s, Starting 6m54s, Running 1h02m, Restarting 1m00s, Starting 3m00s, Running 1h57m"


def test_the_picture_of_the_phases_has_each_attempt() -> None:
    found = job_page(TRAINS, NOW).timeline
    assert found is not None
    phases, *pods = found.lanes
    assert phases.text == PHASES
    assert [lane.name for lane in pods] == [f"worker-{index}" for index in range(4)]
    assert sum(bar.width for bar in phases.bars) == pytest.approx(100, abs=0.1)
    many = replace(TRAINS, pods=[pod("resnet50-imagenet", index) for index in range(100)])
    crowd = job_page(many, NOW).timeline
    assert crowd is not None
    assert crowd.left_out == 84


def test_a_straggler_is_pointed_at() -> None:
    page = job_page(TRAINS, NOW)
    assert [(worker.name, worker.slow) for worker in page.workers][:2] == [("worker-2", True), ("worker-3", False)]
    even = replace(TRAINS, report=report(workerSeconds={"worker-0": 0.2, "worker-1": 0.21}))
    assert not [worker for worker in job_page(even, NOW).workers if worker.slow]
    many = replace(TRAINS, report=report(workerSeconds={f"worker-{i}": 0.2 for i in range(512)}))
    assert job_page(many, NOW).more_workers == 480


def test_the_loss_comes_first_and_its_validation_is_in_the_same_picture() -> None:
    charts = charts_of(TRAINS.series)
    assert [chart.name for chart in charts] == ["loss", "accuracy", "Examples a second", "Seconds of a step"]
    assert [len(chart.curves) for chart in charts] == [2, 2, 1, 1]
    order = ["loss", "val_loss", "a", "b", "stepSeconds"]
    assert list(in_order(["val_loss", "stepSeconds", "b", "loss", "a"])) == order
    assert "from 6.847 to 0.9555" in charts[0].description


def test_commands_are_those_that_help_now() -> None:
    assert "tfgpu suspend resnet50-imagenet -n research" in dict(job_page(TRAINS, NOW).commands).values()
    assert "tfgpu restart unet-cells -n biology" in dict(job_page(FAILED, NOW).commands).values()
    local = job_page(replace(FAILED, local="runs/unet cells"), NOW)
    assert dict(local.commands)["Curves in a terminal"] == "tfgpu plot unet-cells --dir 'runs/unet cells'"
    assert local.steps == ["Lower trainer.globalBatchSize, or ask for more memory"]


def test_what_a_trainer_prints_for_programs_is_shown_in_words() -> None:
    line = '{"tfgpu": "progress", "phase": "training", "step": 60, "steps": 240, "loss": 0.5, "stepSeconds": 2}'
    deep = '{"tfgpu": "progress", "step": 1, "x": ' + "[" * 100_000
    endless = '{"tfgpu": "progress", "step": 1, "steps": 9, "stepSeconds": 1e999}'
    page = job_page(replace(TRAINS, logs={"a": [line, deep, endless, "hello"]}), NOW)
    assert page.replicas[-1].lines == ["step 60/240, loss 0.5000, 6m00s to go", deep, endless, "hello"]


def test_a_run_of_this_machine_shows_its_time_once_its_trainer_has_told() -> None:
    assert len(job_page(replace(TRAINS, local="runs/x"), NOW).time) == 16
    waits = {**TRAINS.job, "status": {**TRAINS.job["status"], "goodput": {"other": 60, "time": "2026-03-04T15:00:00Z"}}}
    assert job_page(replace(TRAINS, local="runs/x", job=waits), NOW).time == []
    assert len(job_page(replace(TRAINS, job=waits), NOW).time) == 1


def test_yaml_is_the_jobs_without_who_set_its_fields() -> None:
    found = {**TRAINS.job, "metadata": {**TRAINS.job["metadata"], "managedFields": [{"manager": "kubectl"}]}}
    page = job_page(replace(TRAINS, job=found), NOW)
    assert "    globalBatchSize: 1024" in page.yaml
    assert "managedFields" not in "".join(page.yaml)


def listed(**wanted: str) -> ListPage:
    jobs = {key: seen.job for key, seen in Planted().known.items()}
    return list_page(jobs, Filter(**wanted), [], NOW)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, ["resnet50-imagenet", "bert-large", "unet-cells", "resnet50-lr-04"]),
        ({"namespace": "biology"}, ["unet-cells"]),
        ({"phase": "Running"}, ["resnet50-imagenet"]),
        ({"text": "RESNET"}, ["resnet50-imagenet", "resnet50-lr-04"]),
        ({"text": "resnet", "phase": "Succeeded", "namespace": "research"}, ["resnet50-lr-04"]),
        ({"text": ".*"}, []),
    ],
)
def test_the_list_is_filtered(wanted: Mapping[str, str], names: Sequence[str]) -> None:
    assert [row.name for row in listed(**wanted).rows] == names


def test_an_empty_list_says_why_it_is_empty() -> None:
    assert "There is no job yet." in rendered("list.html", list_page({}, Filter(), (), NOW))
    assert "No job could be read." in rendered("list.html", list_page({}, Filter(), ("jobs: forbidden",), NOW))
    assert "No job matches the filter." in rendered("list.html", listed(text=".*"))


def test_the_list_says_what_each_waits_for_and_how_many_gpus() -> None:
    page = listed()
    row = next(row for row in page.rows if row.name == "bert-large")
    assert (row.state, row.gpus) == ("Waiting (QuotaExceeded)", "16")
    assert row.why.startswith("Pod bert-large-worker-3 does not fit: exceeded quota: gpus")
    assert dict(page.sums) == {"running": "1 job, 8 GPUs", "waiting": "1 job, 16 GPUs", "finished": "2 jobs"}


def test_a_list_of_many_is_shown_in_parts() -> None:
    many = {f"ns/job-{i}": job(f"job-{i}", {}) for i in range(MOST_ROWS + 7)}
    page = list_page(many, Filter(), [], NOW)
    assert (len(page.rows), page.older) == (MOST_ROWS, 7)
    read = harmless(rendered("list.html", page))
    assert read.all_of("button", form="filter") == [{"form": "filter", "name": "first", "value": str(MOST_ROWS)}]
    rest = list_page(many, Filter(), [], NOW, MOST_ROWS)
    assert (len({row.key for row in [*page.rows, *rest.rows]}), rest.older) == (MOST_ROWS + 7, 0)
    assert not harmless(rendered("list.html", rest)).all_of("button", form="filter")


def test_a_refused_spec_has_no_gpus_and_no_error() -> None:
    refused = {**WAITS.job, "spec": {"strategy": "Mirored", "replicaSpecs": {"worker": {"replicas": -1}}}}
    assert list_page({"a/b": refused}, Filter(), [], NOW).rows[0].gpus == "–"
    harmless(rendered("compare.html", compare_page({"a/b": replace(WAITS, job=refused)}, NOW)))
    harmless(rendered("job.html", job_page(replace(WAITS, job=refused), NOW)))


@pytest.mark.parametrize(("trainer", "gpus"), [(None, "0"), ({"mode": "predict"}, "3"), ({"newer": []}, "3")])
def test_gpus_are_counted_whatever_the_trainer_runs(trainer: Any, gpus: str) -> None:
    spec = {"strategy": "Custom", "replicaSpecs": {"worker": {"replicas": 3}}}
    found = {**WAITS.job, "spec": spec if trainer is None else {**spec, "trainer": trainer}}
    assert list_page({"a/b": found}, Filter(), [], NOW).rows[0].gpus == gpus


def test_a_comparison_marks_what_differs() -> None:
    page = compare_page({"research/resnet50-imagenet": TRAINS, "research/resnet50-lr-04": DONE}, NOW)
    parameters = {parameter.name: (parameter.values, parameter.differs) for parameter in page.parameters}
    assert parameters["trainer.globalBatchSize"] == (["1024", "2048"], True)
    assert parameters["trainer.params.learningRate"] == (["–", "0.4"], True)
    assert parameters["trainer.seed"] == (["7", "7"], False)
    order = [parameter.differs for parameter in page.parameters]
    assert order == sorted(order, reverse=True)
    assert [curve.name for curve in page.charts[0].curves] == ["1. resnet50-imagenet", "2. resnet50-lr-04"]
    assert MOST_COMPARED == 8


def test_a_finished_job_is_told_as_long_as_its_object_is_there() -> None:
    later = NOW + timedelta(days=7)
    assert "OutOfMemory" in " ".join(job_page(FAILED, later).why)


def test_a_condition_of_a_newer_operator_is_no_error() -> None:
    odd = condition("Enchanted", "Unknown", "Magic", "It is.", 1)
    page = page_of(phase="Enchanted", conditions=[odd, condition("Accepted", "True", "Valid", "Valid.", 2)])
    assert page.state == "Enchanted"
    assert json.dumps(page.facts)
