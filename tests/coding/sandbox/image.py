"""An image with nothing in it but an interpreter of this machine, for the container backends: no registry is asked."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
from pathlib import Path

from fugu.errors import SandboxError

NAME = "localhost/fugu-sandbox-test:1"


def build(engine: str) -> str:
    """The name of the image, made unless it is there."""
    command = shutil.which(engine)
    if command is None:
        raise SandboxError(f"{engine} is not installed")
    if subprocess.run([command, "image", "inspect", NAME], capture_output=True, timeout=60).returncode == 0:
        return NAME
    asked = subprocess.run([command, "info"], capture_output=True, text=True, timeout=60)
    if asked.returncode:
        raise SandboxError(f"{engine} has no engine: {asked.stderr.strip()[-200:]}")
    quiet = subprocess.DEVNULL
    with subprocess.Popen([command, "import", "-", NAME], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as importing:
        assert importing.stdin is not None
        with tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
            _fill(archive)
        importing.stdin.close()
        assert importing.wait(120) == 0
    return NAME


def _fill(archive: tarfile.TarFile) -> None:
    python = os.path.realpath(os.path.join(sysconfig.get_config_var("BINDIR"), "python3"))
    library = sysconfig.get_path("stdlib")
    modules = glob.glob(library + "/lib-dynload/*.so")
    for name in ("tmp", "proc", "dev", "sys", "etc", "run"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        archive.addfile(entry)
    for path in {python, *_libraries([python, *modules])}:
        archive.add(os.path.realpath(path), arcname=path.lstrip("/"))
    archive.add(library, arcname=library.lstrip("/"), filter=_without_the_large)
    if python != "/usr/bin/python3":
        link = tarfile.TarInfo("usr/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, python
        archive.addfile(link)


def _without_the_large(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    names = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "__pycache__", "turtledemo"}
    left_out = any(part in names or part.startswith("config-") for part in Path(entry.name).parts)
    return None if left_out else entry


def _libraries(files: list[str]) -> set[str]:
    out = subprocess.run(["ldd", *files], capture_output=True, text=True, timeout=60).stdout
    return set(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", out, re.MULTILINE))
