"""The versions on which a sweep's rows depend: they must be the same wherever rows are computed."""

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planner.base.errors import ExecutionError

PACKAGES = ("numpy", "numba")


@cache
def versions() -> dict[str, str]:
    """Versions of planner, of its code (a digest), of Python, and of the packages that compute."""
    import planner

    found = {"planner": planner.__version__, "code": _code(), "python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def _code() -> str:
    """A digest of the package's code and data: an edited checkout is another planner."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".toml") and path.is_file():
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The difference in words: "numpy 2.4.6 here, 1.26.4 there"; empty where nothing differs."""
    names = dict.fromkeys([*ours, *theirs])
    return ", ".join(
        f"{name} {ours.get(name, 'none')} here, {theirs.get(name, 'none')} there"
        for name in names
        if ours.get(name) != theirs.get(name)
    )


def check_versions(wanted: Mapping[str, str]) -> None:
    """Raises ExecutionError if the versions that run here are not those wanted; names each."""
    if apart := difference(wanted, versions()):
        raise ExecutionError(f"a worker on {platform.node()} runs other versions: {apart}; install the same on all")
