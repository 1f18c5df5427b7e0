"""Archives whose bytes depend on nothing but their content and the release's time."""

import gzip
import io
import tarfile
import tempfile
from pathlib import Path


def write(target: Path, folder: Path, top: str, epoch: int) -> None:
    """A .tar.gz of all files of `folder`, below the folder `top`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(f"{top}/{path.relative_to(folder).as_posix()}")
            entry.size, entry.mtime = path.stat().st_size, epoch
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)
    with target.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed:
        packed.write(buffer.getvalue())


def rewrite(archive: Path, epoch: int) -> None:
    """The same content, without the times and users under which it was packed."""
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        [top] = Path(scratch).iterdir()
        write(archive, top, top.name, epoch)
