"""`planner doctor`: says what is there, finds what is broken, names the command that mends it, and always ends well."""

import json
from importlib import metadata

import pytest

from planner.cli import app, installation
from planner.cli.installation import Finding, findings, install_command, requirements


def test_prints_and_ends_well(capsys, monkeypatch):
    monkeypatch.setattr(
        installation, "findings", lambda: [Finding(name="MPI", works=False, seen="nothing", remedy="do it")]
    )
    assert app(["doctor"], standalone_mode=False) in (None, 0)
    out = capsys.readouterr().out
    assert "NO" in out
    assert "do it" in out
    assert "numpy" in out
    monkeypatch.setenv("COLUMNS", "80")
    app(["doctor"], standalone_mode=False)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert app(["doctor", "--json"], standalone_mode=False) in (None, 0)
    record = json.loads(capsys.readouterr().out)
    assert set(record) == {"about", "findings", "requirements"}
    assert record["findings"] == [
        {"name": "MPI", "works": False, "seen": "nothing", "remedy": "do it", "optional": False}
    ]
    assert {"planner", "python", "system", "processors", "memory"} == set(record["about"])


@pytest.mark.slow
def test_a_working_installation_is_found_to_work():
    found = {f.name: f for f in findings()}
    assert {
        "shipped data",
        "search",
        "compiled simulation",
        "pictures",
        "browser tests",
        "MPI",
        "GPU",
        "sweeps",
    } == set(found)
    for f in found.values():
        assert f.works or f.optional, f
        assert f.works or f.remedy, f


def test_a_broken_probe_is_a_finding(monkeypatch):
    monkeypatch.setitem(installation.PROBES, "broken", {"extra": "mpi", "code": "raise OSError('no such library')"})
    f = installation.tried("broken")
    assert (f.works, f.optional, f.seen) == (False, True, "OSError: no such library")
    assert f.remedy == install_command("mpi")


def test_a_failing_process_says_its_last_line():
    works, seen = installation._python("raise ImportError('libmpi.so.40: cannot open')")
    assert not works
    assert seen == "ImportError: libmpi.so.40: cannot open"
    assert installation._python("print('first'); print('last')") == (True, "last")


def test_a_hanging_process_is_ended(monkeypatch):
    monkeypatch.setattr(installation, "TIMEOUT_S", 0.2)
    works, seen = installation._python("import time; time.sleep(60)")
    assert not works
    assert "no answer" in seen


def test_requirements_come_from_the_metadata(monkeypatch):
    lines = ["numpy>=1.26", "nothing-such>=1; extra == 'gpu'", 'typer>=99 ; extra == "test"', "rich; extra == 'docs'"]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    found = {r.package: r for r in requirements()}
    assert found["numpy"].enough
    assert found["numpy"].extra == ""
    assert found["nothing-such"].installed is None
    assert not found["nothing-such"].enough
    assert not found["typer"].enough
    assert (found["typer"].extra, found["typer"].asked) == ("test", ">=99")
    assert found["rich"].enough


def test_without_an_installed_package_nothing_is_listed(monkeypatch):
    def missing(_: str) -> list[str]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    assert requirements() == []


def test_install_commands():
    assert install_command("mpi").endswith("pip install --upgrade '.[mpi]'")
    assert install_command("").endswith("pip install --upgrade .")
