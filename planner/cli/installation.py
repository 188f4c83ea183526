"""Probes of the installation: each is a piece of Python in a process of its own, with a time limit."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

TIMEOUT_S = 120.0  # of a probe: long enough for a machine that does much else
MPI, BROWSER = "MPI", "browser tests"


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A package that planner's metadata names: for which extra (empty: always), what is asked, what is there."""

    package: str
    extra: str
    asked: str
    installed: str | None
    enough: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Whether something works, what was seen, what would mend it, and whether the rest does without."""

    name: str
    works: bool
    seen: str
    remedy: str = ""
    optional: bool = False


PROBES = tomllib.loads(Path(__file__).with_name("probes.toml").read_text(encoding="utf-8"))
"""Each probe by its name: the code, and the extra that installs what planner can do without."""


def requirements() -> list[Requirement]:
    """Packages that planner needs or may use, from its own metadata; empty where planner isn't installed."""
    try:
        lines = metadata.requires("planner") or []
    except metadata.PackageNotFoundError:
        return []
    out = []
    for line in lines:
        match = re.match(
            r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"].*)?$", line
        )
        if match is None:
            continue
        package, asked, extra = match.groups(default="")
        installed = _version(package)
        enough = installed is not None and _at_least(installed, asked)
        out.append(Requirement(package=package, extra=extra, asked=asked, installed=installed, enough=enough))
    return out


def _at_least(installed: str, asked: str) -> bool:
    """Whether a version is that or newer of ``>=``; other conditions are pip's to judge."""

    def numbers(version: str) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", re.split(r"[-+a-z]", version)[0])]

    least = re.search(r">=\s*([\d.]+)", asked)
    return least is None or numbers(installed) >= numbers(least.group(1))


def machine() -> dict[str, str]:
    """Python, system, processors, memory."""
    import platform

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    known = hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else 0
    return {
        "python": f"{platform.python_version()} at {sys.executable}",
        "system": platform.platform(),
        "processors": f"{usable} of {os.cpu_count()} usable ({platform.machine()})",
        "memory": f"{total / 2**30:.1f} GiB" if known else "not told by this system",
    }


def findings() -> list[Finding]:
    """Findings of all probes, run at once."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        return list(pool.map(tried, PROBES))


def tried(name: str) -> Finding:
    """One probe's finding."""
    extra = PROBES[name].get("extra", "")
    remedy = install_command(extra) + (" && playwright install chromium" if name == BROWSER else "")
    before: tuple[str, ...] = ()
    if name == MPI:
        beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        launcher = shutil.which("mpirun", path=beside) or shutil.which("mpiexec", path=beside)
        if launcher is None:
            return Finding(name=name, works=False, seen="no mpirun", remedy=remedy, optional=bool(extra))
        before = (launcher, "-n", "2")
    works, seen = _python(PROBES[name]["code"], *before)
    return Finding(name=name, works=works, seen=seen, remedy=remedy, optional=bool(extra))


def install_command(extra: str) -> str:
    """The command that installs planner with an extra, or as it is."""
    return f"in planner's folder: python -m pip install --upgrade '.[{extra}]'".replace("'.[]'", ".")


def _python(code: str, *before: str) -> tuple[bool, str]:
    """Whether a piece of Python runs in its own process, and its last line (of the errors, where it fails)."""
    # Open MPI refuses root and more ranks than cores unless told.
    allow = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    try:
        done = subprocess.run(
            [*before, sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, **allow},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"no answer in {TIMEOUT_S:.0f} s"
    except OSError as error:
        return False, str(error)
    lines = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
    return done.returncode == 0, lines[-1].strip() if lines else f"exit code {done.returncode}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
