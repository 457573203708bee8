"""The package as the next release could be, in an environment for itself.

It is this checkout with a higher version, a higher format of the journal, and one more field in a
record, which it writes. Its dependencies are this checkout's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from rallypoint.server.journal.codec import batches
from support.versions.earlier import REPOSITORY, Package, write_command

VERSION = "9.1.0"
FORMAT = batches.FORMAT + 1
"""Of the journal."""
ROOTS = ("agent", "base", "cli", "client", "proto", "server")
_RECORD_PROTO = "rallypoint/journal/v1/record.proto"


def install_following(folder: Path) -> Package:
    """Make the package below a folder."""
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for root in ROOTS:
        shutil.copytree(
            REPOSITORY / root / "rallypoint",
            packages / "rallypoint",
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )
    _grow(packages)
    facts = packages / f"rallypoint-{VERSION}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: rallypoint\nVersion: {VERSION}\n"
    )
    # As a path: the .pth files there, among them that of this checkout, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Package(
        write_command(environment, "node-agent", "node_agent"),
        write_command(environment, "coordinator", "coordinator"),
    )


def _grow(packages: Path) -> None:
    """Add a field to a record, in its struct, its message and its stub, and raise the format."""
    server = packages / "rallypoint" / "server"
    _replace(
        packages / _RECORD_PROTO,
        "message EpochRaised {\n",
        "message EpochRaised {\n  // Version of the coordinator.\n"
        "  optional string version = 900;\n",
    )
    _replace(
        server / "core" / "messages" / "records.py",
        "    resumed: bool = False\n",
        f"    resumed: bool = False\n    version: str = {VERSION!r}\n",
    )
    codec = server / "journal" / "codec" / "batches.py"
    _replace(codec, f"FORMAT = {FORMAT - 1}\n", f"FORMAT = {FORMAT}\n")
    command = (sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={packages}")
    subprocess.run([*command, f"--python_out={packages}", _RECORD_PROTO], check=True)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} of {old!r}"
    path.write_text(text.replace(old, new))
