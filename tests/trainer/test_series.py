"""The curves of a run: bounded, spread over the whole of it, and going on where the run does."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import urllib.error
import urllib.request

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.machine import PATIENCE
from tests.trainer import user_module
from tests.trainer.inprocess import entrypoint, train_module
from tests.trainer.training_logs import progress_of

from tfgpujob_contract.pod import MAX_NAMES, MAX_POINTS, MAX_PROGRESS, MAX_SERIES
from tfgpujob_trainer.own_loop.reporter import Reporter
from tfgpujob_trainer.own_loop.supervised import SupervisedStatus
from tfgpujob_trainer.reporting import progress_endpoint
from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.reporting.series import Series

NAME = "\N{WOMAN}" * 200
"""Twelve bytes a character in JSON."""


def steps(series: Series, split: str = "train", first: int = 0) -> list[int]:
    return [point[0] for point in json.loads(series.to_json(first))[split]["points"]]


@given(st.integers(1, 5000))
def test_points_span_the_whole_run_evenly(count):
    series = Series()
    for step in range(count):
        series.add("train", step, {"loss": step})
    kept = steps(series)
    assert (kept[0], kept[-1]) == (0, count - 1), "the first, and the newest"
    assert min(count, MAX_POINTS // 2) <= len(kept) <= MAX_POINTS
    gaps = {b - a for a, b in itertools.pairwise(kept[:-1])}
    assert len(gaps) <= 1, "but for the newest, all are equally far apart"


def test_any_metrics_of_any_name_stay_within_the_bound():
    series = Series()
    for step in range(3 * MAX_POINTS):
        values = {f"{i}-{NAME}": -1.23456e-300 * (step + 1) for i in range(3 * MAX_NAMES)}
        for split in ("train", "validation"):
            series.add(split, 10**14 + step, values)
    assert len(series.to_json()) <= MAX_SERIES
    assert len(json.loads(series.to_json())["train"]["names"]) == MAX_NAMES


def test_what_is_no_number_is_null_and_nothing_else_is_lost():
    series = Series()
    series.add("train", 1, {"loss": math.nan, "accuracy": 0.123456789})
    series.add("train", 2, {"loss": 0.5, "accuracy": None})
    found = json.loads(series.to_json(), parse_constant=pytest.fail)["train"]
    assert found == {"names": ["loss", "accuracy"], "points": [[1, None, 0.123457], [2, 0.5, None]]}


@pytest.mark.parametrize("torn", ["", "[]", "{", '{"train": 1}', '{"train": {"names": ["a"], "points": [[1]]}}'])
def test_a_run_goes_on_with_what_it_had_written_and_a_torn_file_costs_the_curves_alone(tmp_path, torn):
    file, series = tmp_path / "series.json", Series()
    for step in range(10):
        series.add("train", step, {"loss": step})
    series.write(file)
    again = Series()
    again.resume(6, file)
    assert steps(again) == list(range(7)), "what came after the checkpoint is trained once more"
    again.add("train", 7, {"loss": 0})
    assert steps(again, first=6) == [6, 7]
    file.write_text(torn)
    fresh = Series()
    fresh.resume(6, file)
    fresh.add("train", 7, {"loss": 0})
    assert steps(fresh) == [7]


def test_a_program_that_was_started_again_draws_no_line_back():
    series = Series()
    for step in (1, 2, 3, 4, 2, 3):
        series.add("train", step, {"loss": 1.0})
    assert steps(series) == [1, 2, 3]


def test_progress_tells_the_curves_only_when_it_is_asked():
    status = RunStatus()
    reporter = Reporter(status, iter(range(0, 100, 10)).__next__)
    for step in range(4):
        reporter.report({"step": step, "steps": 4}, 0.5, 8, {"accuracy": 0.9})
    port = progress_endpoint.serve(status, 0, in_pod=False)

    def got(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.read()

    assert b"train" not in got("/progress").replace(b'"training"', b"")
    assert len(got("/progress")) < MAX_PROGRESS
    found = json.loads(got("/progress?series=2"))["train"]
    assert found["names"] == ["loss", "stepSeconds", "examplesPerSecond", "accuracy"]
    assert found["points"] == [[2, 0.5, 10.0, 0.8, 0.9], [3, 0.5, 10.0, 0.8, 0.9]]
    for path in ("/progress?series=", "/progress?series=-1", "/progress?series=1e3", "/progress?x=1"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            got(path)


def test_a_run_leaves_its_curves_in_the_output(tmp_path):
    rows = user_module.data("train")
    train_module(
        entrypoint(user_module.model, rows, validation=rows),
        devices=1,
        epochs=2,
        batch=32,
        seed=1,
        output=tmp_path,
        evaluate={"everyEpochs": 1},
    )
    found = json.loads((tmp_path / "series.json").read_bytes())
    assert [point[0] for point in found["train"]["points"]] == [point[0] for point in found["validation"]["points"]]
    assert set(found["validation"]["names"]) == {"loss", "accuracy"}
    assert found["train"]["names"][:3] == ["loss", "stepSeconds", "examplesPerSecond"]


def test_a_run_that_goes_on_has_the_curves_of_all_of_it(tmp_path):
    rows = user_module.data("train")
    module = entrypoint(user_module.model, rows)
    steps_of = []
    for epochs in (2, 4):
        train_module(module, devices=1, epochs=epochs, batch=32, seed=1, output=tmp_path, checkpoint={"everyEpochs": 1})
        steps_of.append([point[0] for point in json.loads((tmp_path / "series.json").read_bytes())["train"]["points"]])
    first, whole = steps_of
    assert whole[: len(first)] == first
    assert len(whole) == 2 * len(first) > 2


def test_what_a_program_of_its_own_reports_reaches_its_supervisor(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    read, write = os.pipe()
    told = SupervisedStatus(write, has_peers=False)
    Reporter(told, lambda: 0.0).report({"step": 3, "steps": 9}, 0.5, None, {"accuracy": 0.25})
    os.close(write)
    heard = RunStatus()
    with os.fdopen(read) as pipe:
        for record in map(json.loads, pipe):
            if "point" in record:
                heard.add_point(*record["point"])
    found = json.loads(heard.series(0))["train"]
    assert dict(zip(found["names"], found["points"][0][1:], strict=True)) == {
        "loss": 0.5,
        "stepSeconds": None,
        "examplesPerSecond": None,
        "accuracy": 0.25,
    }


def test_curves_that_cannot_be_written_end_no_training(tmp_path):
    log = progress_of("worker-0")
    log.series_file = tmp_path / "gone" / "series.json"
    log.line(phase="training", step=1, epoch=1, values={"loss": 1.0})
    log.close()
    assert not log.series_file.exists()
