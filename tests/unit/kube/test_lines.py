"""Chunks become lines, however they are cut; long lines come in pieces, and nothing is looked at twice."""

from __future__ import annotations

import random
import time

from tfgpujob.kube.lines import Part, Splitter


def split(chunks: list[bytes], longest: int | None) -> list[Part]:
    splitter = Splitter(longest)
    return [part for chunk in chunks for part in splitter.feed(chunk)] + splitter.rest()


def test_lines_are_the_same_however_the_stream_is_cut() -> None:
    chance = random.Random(3)
    for _ in range(500):
        text = bytes(chance.choices(b"ab\n", weights=[9, 9, 2], k=chance.randrange(60)))
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(8)))
        chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        lines = text.split(b"\n") if text else []
        lines = lines[:-1] if lines and not lines[-1] else lines
        assert split(chunks, None) == [Part(line) for line in lines]
        pieces = split(chunks, 3)
        assert all(0 <= len(piece.text) <= 3 for piece in pieces)
        together: list[bytes] = []
        for piece in pieces:
            together[-1:] = [together[-1] + piece.text] if not piece.begins else [*together[-1:], piece.text]
        assert together == lines
        assert [piece.begins for piece in pieces] == [True, *(piece.ends for piece in pieces)][: len(pieces)]


def test_a_line_without_end_is_not_held() -> None:
    splitter = Splitter(1000)
    seen = sum(len(part.text) for _ in range(5000) for part in splitter.feed(b"." * 700))
    assert seen > 5000 * 700 - 2000
    assert len(splitter._held) <= 1000


def test_a_long_line_costs_what_its_bytes_cost() -> None:
    """To copy all that is held with every chunk took minutes for an object of some megabytes, and hours for a log."""
    splitter = Splitter()
    begun = time.process_time()
    for _ in range(16_384):
        splitter.feed(b"x" * 4096)
    assert len(splitter.feed(b"\n")[0].text) == 64 << 20
    assert time.process_time() - begun < 5
