"""archive.py FOLDER ARCHIVE: FOLDER as a .tar.gz or a .zip.

The same files give the same bytes: names in order, one owner, and the time of SOURCE_DATE_EPOCH."""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
import time
import zipfile
from pathlib import Path

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])


def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = EPOCH
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def tar(folder: Path, files: list[Path], archive: Path) -> None:
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=EPOCH) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as out,
    ):
        for file in files:
            out.add(file, str(file.relative_to(folder.parent)), recursive=False, filter=plain)


def zipped(folder: Path, files: list[Path], archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for file in files:
            if file.is_file():
                entry = zipfile.ZipInfo(file.relative_to(folder.parent).as_posix(), time.gmtime(EPOCH)[:6])
                entry.external_attr = (0o100755 if os.access(file, os.X_OK) else 0o100644) << 16
                entry.create_system = 3
                out.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    folder, archive = Path(sys.argv[1]), Path(sys.argv[2])
    files = [folder, *sorted(folder.rglob("*"), key=lambda file: file.as_posix())]
    (zipped if archive.suffix == ".zip" else tar)(folder, files, archive)


main()
