"""What is installed and whether it works: each probe answers with a finding, never with an exception."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

TIMEOUT_S = 30.0


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


def requirements() -> list[Requirement]:
    """What planner needs and may use, from its own metadata; empty where it runs without being installed."""
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
    out = {
        "python": f"{platform.python_version()} at {sys.executable}",
        "system": platform.platform(),
        "processors": f"{usable} of {os.cpu_count()} usable ({platform.machine()})",
    }
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        out["memory"] = f"{total / 2**30:.1f} GiB"
    except (AttributeError, ValueError, OSError):
        out["memory"] = "not told by this system"
    return out


def findings() -> list[Finding]:
    """What works, probed at the same time; what may hang runs in a process of its own, with a limit."""
    from concurrent.futures import ThreadPoolExecutor

    probes: list[Callable[[], Finding]] = [_data, _search, _compiled, _pictures, _browser, _mpi, _gpu, _sweeps]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_safely, probes))


def _safely(probe: Callable[[], Finding]) -> Finding:
    """The finding, or that the probe failed with its error: a doctor reports what is broken."""
    try:
        return probe()
    except Exception as error:
        name = probe.__name__.removeprefix("_").replace("_", " ")
        return Finding(name=name, works=False, seen=f"{type(error).__name__}: {error}", remedy=install_command(""))


def install_command(extra: str) -> str:
    """What installs planner with an extra, or as it is."""
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


def _data() -> Finding:
    from planner.base.files import shipped_folder
    from planner.hardware import profile_names
    from planner.models import model_names

    runs = len(list(shipped_folder("measured_runs").glob("*.csv")))
    clusters = len(profile_names("clusters"))
    seen = f"{len(model_names())} models, {clusters} clusters, {runs} files of measured runs"
    return Finding(name="shipped data", works=bool(clusters and runs), seen=seen, remedy=install_command(""))


def _search() -> Finding:
    import time

    from planner.question import load_setup, numerics
    from planner.search import recommend

    begun = time.perf_counter()
    asked = load_setup("gpt2", "dgx-a100-80gb")
    precision, attention = numerics(asked.cluster, None, None)
    found = recommend(asked, gpus=8, global_batch=64, precision=precision, attention=attention)
    seen = f"{found.legal:,} layouts of gpt2 on 8 GPUs in {time.perf_counter() - begun:.1f} s"
    return Finding(name="search", works=len(found.best) > 0, seen=seen, remedy=install_command(""))


def _compiled() -> Finding:
    return _ran("compiled simulation", (
        "import time, numpy as np, numba; from planner.schedules import Pipeline, get_schedule; "
        "from planner.step.timeline.timeline import run; t = time.perf_counter(); "
        "o = get_schedule('1f1b').order(Pipeline(p=2, m=4, v=1, k=1)); run(o, np.ones(len(o)), compiled=True); "
        "print(f'numba {numba.__version__}, ready in {time.perf_counter() - t:.1f} s')"
    ))  # fmt: skip


def _pictures() -> Finding:
    return _ran("pictures", "import matplotlib, matplotlib.figure; print('matplotlib', matplotlib.__version__)")


def _ran(name: str, code: str) -> Finding:
    """Whether a part works, by a piece of Python that needs it."""
    works, seen = _python(code)
    return Finding(name=name, works=works, seen=seen, remedy=install_command(""))


def _browser() -> Finding:
    """Only the tests of the HTML report open one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    package = _version("playwright")
    seen = f"playwright {package or 'missing'}, {found or 'no system Chromium'}"
    remedy = f"{install_command('browser')} && playwright install chromium"
    return Finding(name="browser tests", works=bool(package and found), seen=seen, remedy=remedy, optional=True)


def _mpi() -> Finding:
    remedy = install_command("mpi")
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    launcher = shutil.which("mpirun", path=beside) or shutil.which("mpiexec", path=beside)
    if _version("mpi4py") is None or launcher is None:
        seen = f"mpi4py {_version('mpi4py') or 'missing'}, {launcher or 'no mpirun'}"
        return Finding(name="MPI", works=False, seen=seen, remedy=remedy, optional=True)
    code = (
        "from mpi4py import MPI; c = MPI.COMM_WORLD; n = c.allreduce(1); name = MPI.Get_library_version(); "
        "c.rank or print(f'{n} ranks by', name.split(',')[0].strip()); assert n == 2, 'mpirun started ranks that "
        "do not see each other: mpi4py is built for another MPI'"
    )
    works, seen = _python(code, launcher, "-n", "2")
    return Finding(name="MPI", works=works, seen=seen, remedy=remedy, optional=True)


def _gpu() -> Finding:
    driver = _driver()
    if (version := _version("cupy-cuda12x") or _version("cupy-cuda13x") or _version("cupy")) is None:
        seen = f"{driver or 'no NVIDIA GPU seen'}, CuPy missing"
        remedy = (
            install_command("gpu") if driver else "needs an NVIDIA GPU; all but planner train --device gpu runs without"
        )
        return Finding(name="GPU", works=False, seen=seen, remedy=remedy, optional=True)
    code = (
        "import cupy; n = cupy.cuda.runtime.getDeviceCount(); "
        "x = cupy.ones((64, 64)); assert float((x @ x)[0, 0]) == 64; "
        "print(n, 'x', cupy.cuda.runtime.getDeviceProperties(0)['name'].decode())"
    )
    works, seen = _python(code)
    return Finding(
        name="GPU", works=works, seen=f"{seen}, CuPy {version}", remedy="a driver and a GPU that CuPy can use"
    )


def _driver() -> str:
    """Devices as the driver names them, or nothing."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return ""
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    names = done.stdout.splitlines() if done.returncode == 0 else []
    return f"{len(names)} x {names[0]}" if names else ""


def _sweeps() -> Finding:
    parquet, dask = _version("pyarrow"), _version("distributed")
    seen = f"pyarrow {parquet or 'missing'}, distributed {dask or 'missing'}"
    return Finding(name="sweeps", works=bool(parquet), seen=seen, remedy=install_command("sweep"), optional=True)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
