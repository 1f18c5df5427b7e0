"""The machine's own apt sources, as they are found on Debian machines."""

from pathlib import Path

import pytest
from localcluster import apt
from localcluster.layout import ClusterError

DEB822 = """\
Types: deb
# a snapshot was used to build this
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.invalid/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.invalid/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://commented.invalid/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.invalid/debian bookworm main contrib
deb http://mirror.invalid/debian bookworm-updates main
deb https://packages.invalid/apt cloud-sdk-bookworm main
"""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_takes_only_enabled_binary_sources_of_the_release() -> None:
    assert list(apt.parse_deb822(DEB822)) == [apt.Source("http://mirror.invalid/debian", "main contrib", KEYRING)]


def test_reads_the_one_line_style_with_its_options() -> None:
    assert list(apt.parse_one_line(ONE_LINE)) == [
        apt.Source("http://mirror.invalid/debian", "main contrib", "/usr/share/keyrings/x.gpg")
    ]


def test_collects_all_files_that_apt_reads(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/old.list.disabled").write_text("deb http://off.invalid/debian bookworm main\n")
    assert [source.signed_by for source in apt.sources(tmp_path)] == ["/usr/share/keyrings/x.gpg", KEYRING]


def test_says_what_to_add_where_no_source_fits(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no apt source") as caught:
        apt.sources(tmp_path)
    assert str(tmp_path) in caught.value.fix
