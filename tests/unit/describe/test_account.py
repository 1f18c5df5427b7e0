"""What describe shows of a job's time and of its last recovery."""

from __future__ import annotations

from tfgpujob.describe import account
from tfgpujob_contract import goodput

ACCOUNT = {"queued": 3, "importing": 5, "useful": 80, "lost": 2, "suspended": 10, "time": "2026-01-01T00:01:40Z"}
TABLE = """\
Time        1m40s until 2026-01-01T00:01:40Z, goodput 88.9%
  queued             3s    3.0%  until the pod had a node
  importing          5s    5.0%  Python, TensorFlow, the user's module
  useful          1m20s   80.0%  steps done for the first time
  lost               2s    2.0%  from the last sign of life of what failed
  suspended         10s   10.0%  by runPolicy.suspend"""
IN_PLACE = {
    "how": "InPlace",
    "failed": "2026-01-01T00:00:01.250Z",
    "detected": "2026-01-01T00:00:01.270Z",
    "ended": "2026-01-01T00:00:01.280Z",
    "started": "2026-01-01T00:00:01.500Z",
    "restored": "2026-01-01T00:00:02.000Z",
    "stepped": "2026-01-01T00:00:02.450Z",
}
MOMENTS = """\
Recovery    the last one, in place
  00:00:01              last sign of life
  00:00:01    +0.020 s  noticed
  00:00:01    +0.030 s  the processes are gone
  00:00:01    +0.250 s  its program starts
  00:00:02    +0.750 s  the checkpoint is restored
  00:00:02    +1.200 s  the first new step is done"""


def test_the_parts_have_shares_and_meanings() -> None:
    assert account.goodput_table(ACCOUNT) == TABLE
    assert account.goodput_table({}) == ""
    assert "goodput" not in account.goodput_table({"other": 5, "time": "2026-01-01T00:00:05Z"})


def test_a_recovery_is_told_moment_by_moment() -> None:
    assert account.recovery_table(IN_PLACE) == MOMENTS
    assert account.recovery_table({}) == ""
    pods = {"how": "Pods", "failed": "2026-01-01T00:00:01Z", "created": "2026-01-01T00:00:13Z"}
    assert account.recovery_table(pods).splitlines()[-1] == "  00:00:13       +12 s  the next pod is created"
    by_another_clock = {**pods, "started": "2026-01-01T00:00:00Z"}
    assert account.recovery_table(by_another_clock).splitlines()[-1] == "  00:00:00        -1 s  its program starts"


def test_all_have_words() -> None:
    assert set(account._MEANING) == set(goodput.PARTS)
    assert set(account._MOMENTS) == set(goodput.MOMENTS)
