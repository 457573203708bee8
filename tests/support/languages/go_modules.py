"""Go modules from Debian's packages, for machines that reach no proxy of Go modules.

A module proxy may be a folder: a list of versions, and a .info, a .mod and a .zip for each. Debian
packages the sources of Go modules, so such a folder can be made of them. Modules of this folder
require nothing: the go.mod of the example names them all.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from msgspec import Struct

RELEASE = "trixie"
"""Debian 13, the first release whose grpc-go has `NewClient`."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT_LIMIT_S = 300
_SOURCES = "usr/share/gocode/src"


class _Module(Struct, frozen=True):
    path: str
    version: str
    package: str
    requires: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Packages for other systems that Debian leaves out, and that `go mod tidy` looks for."""


_PROTOBUF = "google.golang.org/protobuf v1.36.5"
_OLD_PROTOBUF = "github.com/golang/protobuf v1.5.4"
MODULES = (
    _Module(
        "google.golang.org/grpc",
        "v1.64.0",
        "golang-google-grpc-dev",
        (_OLD_PROTOBUF, _PROTOBUF),  # Debian generates its stubs again, with the old library
    ),
    _Module(
        "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
        "v1.3.0",
        "golang-google-grpc-dev",
        (_PROTOBUF,),
    ),
    _Module("google.golang.org/protobuf", "v1.36.5", "golang-google-protobuf-dev"),
    _Module("github.com/golang/protobuf", "v1.5.4", "golang-github-golang-protobuf-1-5-dev"),
    _Module(
        "google.golang.org/genproto/googleapis/rpc",
        "v0.0.0-20240318140521-94a12d6c2237",
        "golang-google-genproto-dev",  # an older state of the same files
    ),
    _Module("golang.org/x/net", "v0.27.0", "golang-golang-x-net-dev"),
    _Module("golang.org/x/sys", "v0.22.0", "golang-golang-x-sys-dev", left_out=("windows",)),
    _Module("golang.org/x/text", "v0.22.0", "golang-golang-x-text-dev"),
)


def has_debian() -> bool:
    """Return whether this machine can install packages of Debian."""
    return shutil.which("apt-get") is not None and KEYRING.exists()


def make_module_proxy(build: Path) -> Path:
    """Return a folder below `build` that serves the modules; make it if it is not there."""
    digest = hashlib.sha256(repr(MODULES).encode()).hexdigest()[:8]
    proxy = build / f"go-modules-{digest}"
    if proxy.exists():
        return proxy
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as name:
        folder = Path(name)
        _fetch(folder)
        for module in MODULES:
            _add(module, folder / _SOURCES / module.path, folder / "proxy")
        try:
            (folder / "proxy").rename(proxy)
        except OSError:
            assert proxy.exists()  # another process was faster
    return proxy


def _fetch(folder: Path) -> None:
    """Download the packages and unpack them into a folder; install nothing."""
    apt = _apt(folder)
    _run(folder, *apt, "update")
    _run(folder, *apt, "download", *sorted({module.package for module in MODULES}))
    for archive in sorted(folder.glob("*.deb")):
        _run(folder, "dpkg-deb", "--extract", str(archive), ".")


def _apt(folder: Path) -> list[str]:
    """Return apt-get with another release, and with lists and cache in a folder."""
    source = folder / "debian.list"
    source.write_text(f"deb [signed-by={KEYRING}] {_mirror()} {RELEASE} main\n")
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "root",  # no one else has the folder
    }
    return ["apt-get", "-qq", *(word for key, value in options.items() for word in _o(key, value))]


def _mirror() -> str:
    """Return where this machine gets the packages of its release from."""
    folder = Path("/etc/apt")
    for path in (*folder.glob("sources.list"), *sorted(folder.glob("sources.list.d/*"))):
        found = re.search(r"^[^#\n]*?(\S+://\S+/debian)/?(?=\s)", path.read_text(), re.MULTILINE)
        if found is not None:
            return found[1]
    raise AssertionError("no source of Debian's packages in /etc/apt")


def _o(key: str, value: object) -> tuple[str, str]:
    return "-o", f"{key}={value}"


def _add(module: _Module, sources: Path, proxy: Path) -> None:
    """Add a module to a proxy, without its tests and without the modules inside it."""
    folder = proxy / module.path / "@v"
    folder.mkdir(parents=True)
    requires = "".join(f"require {one}\n" for one in module.requires)
    text = f"module {module.path}\n\ngo 1.21\n\n{requires}"
    (folder / "list").write_text(f"{module.version}\n")
    (folder / f"{module.version}.info").write_text(json.dumps({"Version": module.version}))
    (folder / f"{module.version}.mod").write_text(text)
    inner = [one.path for one in MODULES if one.path.startswith(f"{module.path}/")]
    with zipfile.ZipFile(folder / f"{module.version}.zip", "w", zipfile.ZIP_STORED) as archive:
        root = f"{module.path}@{module.version}"
        archive.writestr(f"{root}/go.mod", text)
        for package in module.left_out:
            archive.writestr(f"{root}/{package}/empty.go", f"package {package}\n")
        for path in sorted(path for path in sources.rglob("*") if path.is_file()):
            name = path.relative_to(sources)
            is_inner = any(f"{module.path}/{name}".startswith(f"{one}/") for one in inner)
            is_test = name.name.endswith("_test.go") or "testdata" in name.parts
            if not is_inner and not is_test and name.name != "go.mod":
                archive.write(path, f"{root}/{name}")


def _run(folder: Path, *argv: str) -> None:
    ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=_APT_LIMIT_S)
    assert ran.returncode == 0, f"{' '.join(argv)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
