"""Files, pipes, devices and streams as a shell gives them, in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner.base.errors import FileFormatError, OutputError, PlannerError
from planner.base.files import check_writable, read_bytes, read_json, read_toml, write_bytes, write_text
from planner.plan_file import read_plan
from tests.commands import planner as here
from tests.fuzz.corpus import MODEL, PLAN, PLAN_WITH_SHAPE
from tests.fuzz.harness import run
from tests.hang import HANG_S

ROOT = Path(__file__).parents[2]
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def planner(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of shell in which `planner` is this tree's."""
    script = f'planner() {{ "{sys.executable}" -m planner "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], cwd=cwd, capture_output=True, text=True, timeout=HANG_S, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


def one_line(done: subprocess.CompletedProcess[str], *named: str) -> None:
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("planner: ")
    for text in named:
        assert text in done.stderr


@FULL
def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    one_line(planner("planner models > /dev/full", tmp_path), "standard output", "No space left")
    one_line(planner("planner models gpt2 --json > /dev/full", tmp_path), "standard output", "No space left")
    one_line(planner("planner schedule 1f1b --csv /dev/full", tmp_path), "/dev/full", "No space left")
    assert Path("/dev/full").is_char_device()
    assert not list(tmp_path.iterdir())


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    done = planner("planner schedule zb-v --pp 8 --micro-batches 64 --json | head -c 1", tmp_path)
    assert (done.stdout, done.stderr) == ("{", "")


def test_closed_streams(tmp_path: Path) -> None:
    assert planner("planner models gpt2 >&-", tmp_path).stderr == ""
    assert planner("planner models nothing 2>&-", tmp_path).returncode == 2


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MODEL.replace('"mine"', '"\u6a21\u578b \u05e2\u05d1"'), encoding="utf-8")
    done = planner("planner models m.toml", tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\u6a21" in done.stdout
    assert "\u6a21\u578b" in planner("planner models m.toml", tmp_path, PYTHONIOENCODING="utf-8").stdout


@pytest.mark.parametrize("name", ["[/red]", "[bold]x[/bold]", ":smile:", "%(x)s {0}"])
def test_a_name_is_shown_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.toml").write_text(MODEL.replace("mine", name))
    assert name in here("models", "m.toml", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["$\\\\frac$", "</text><script>alert(1)</script>", "\u6a21\u578b & \U0001f4a5"])
def test_a_picture_shows_a_name_as_it_is(tmp_path: Path, name: str) -> None:
    """No formula is set, no element is opened, and letters that the font lacks are no warning."""
    (tmp_path / "m.toml").write_text(MODEL.replace("mine", name), encoding="utf-8")
    ask = f"simulate {tmp_path / 'm.toml'} --cluster selene --pp 2 --global-batch 2 --svg"
    outcome = run([*ask.split(), str(tmp_path / "x.svg")])
    assert (outcome.code, outcome.stderr, outcome.crash) == (0, "", "")
    drawn = ElementTree.parse(tmp_path / "x.svg")
    assert name.replace("\\\\", "\\") in "".join(drawn.getroot().itertext())
    assert not [e for e in drawn.iter() if e.tag.endswith("script")]


def test_no_escape_sequence_reaches_the_terminal(tmp_path: Path) -> None:
    bad = tmp_path / "\x1b[31mred.toml"
    bad.write_text(MODEL.replace('name = "mine"\n', ""))
    (tmp_path / "m.toml").write_text(MODEL.replace('"mine"', '"\\u001b]0;title\\u0007"'))
    (tmp_path / "c.json").write_text('{"model_type": "\\u001b[2J"}')
    for line in ("$'\\e[31mred.toml'", "m.toml", "c.json", "$'\\e[31m'", "$'no\\u202esuch.toml'"):
        done = planner(f"planner models {line}", tmp_path, LC_ALL="C.UTF-8")
        one_line(done)
        assert all(c.isprintable() for c in done.stderr.strip()), done.stderr


def test_a_pipe_is_read_and_one_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MODEL)
    os.mkfifo(tmp_path / "pipe.toml")
    one_line(planner("planner models pipe.toml", tmp_path), "pipe.toml", "tables []", "[model]")
    one_line(planner("planner schedule 1f1b --svg pipe.svg", tmp_path)) if os.mkfifo(tmp_path / "pipe.svg") else None
    done = planner("cat m.toml > pipe.toml & planner models pipe.toml", tmp_path)
    assert done.returncode in (0, 2)  # the writer may come too late
    assert planner("planner validate <(cat runs.csv)", _runs(tmp_path)).returncode == 0


def _runs(folder: Path) -> Path:
    shutil.copy(ROOT / "measured_runs" / "korthikanti_2022_a100.csv", folder / "runs.csv")
    return folder


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"/dev/zero: .* over .* bytes"):
        read_bytes(Path("/dev/zero"), most=1000)
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    one_line(planner("planner validate zero.csv", tmp_path), "zero.csv", "bytes")


@pytest.mark.parametrize(
    "name", ["none.toml", "folder.toml", "loop.toml", "broken.toml", "none/m.toml", "m.toml/x.toml"]
)
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "m.toml").write_text(MODEL)
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "broken.toml").symlink_to("nowhere")
    with pytest.raises(FileFormatError, match="can't be read") as caught:
        read_toml(tmp_path / name)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8 text at byte 0"),
        (b'{"a": 1, "b": 2, "a": 3}', "field a stands twice"),
        (b'{"a": {"b": 1, "b": 2}}', "field b stands twice"),
        (b"[" * 100_000, "not valid JSON: its lists or objects are nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b"[1]", "holds a list"),
        (b"null", "holds null; allowed: an object"),
    ],
)
def test_json_that_is_none(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=said) as caught:
        read_json(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_marks_and_line_ends_of_windows(tmp_path: Path, mark: bytes, end: bytes) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(mark + MODEL.encode().replace(b"\n", end))
    assert read_toml(path)["model"]["layers"] == 4


def test_writing_keeps_links_devices_and_what_was_there(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert (target.read_text(), link.is_symlink()) == ("new", True)
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    for write in (check_writable, lambda path: write_text(path, "x")):
        with pytest.raises(OutputError, match="one: can't be written: "):
            write(one)
    assert one.is_symlink()
    one.unlink()
    other.unlink()
    write_text(Path("/dev/null"), "x")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "folder").mkdir()
    for bad in (tmp_path / "folder", tmp_path / "none" / "x", tmp_path / "nul\0", target / "x"):
        with pytest.raises(OutputError, match="can't be written"):
            write_text(bad, "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link.txt", "target.txt"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


def test_a_pipe_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="pipe"):
        write_text(pipe, "nobody reads")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    while True:  # until the reader has opened it
        try:
            write_text(pipe, "text")
            break
        except OutputError:
            continue
    reader.join()
    assert got == [b"text"]


@pytest.mark.skipif(AS_ROOT, reason="root may read and write everything")
def test_permissions(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret.toml", tmp_path / "locked"
    secret.write_text(MODEL)
    secret.chmod(0)
    folder.mkdir(mode=0o500)
    with pytest.raises(FileFormatError, match="Permission denied"):
        read_toml(secret)
    with pytest.raises(OutputError, match="ermission denied"):
        write_text(folder / "x", "x")
    with pytest.raises(OutputError, match="permission denied"):
        check_writable(folder / "x")


@pytest.mark.parametrize(
    "name", ["../m.toml", "/etc/passwd.toml", "..", ".", "/dev/zero", "sub/../../m.toml", "a/\0.toml"]
)
@pytest.mark.parametrize("field", ["model", "cluster", "framework"])
def test_a_plan_names_no_file(tmp_path: Path, field: str, name: str) -> None:
    """It may come from elsewhere, so what it names are shipped profiles."""
    plan, sound = tmp_path / "plan.json", {"cluster": "selene", "framework": "megatron-lm"} | PLAN
    plan.write_text(json.dumps(sound))
    assert read_plan(plan).gpus == 4
    plan.write_text(json.dumps(sound | {field: name}))
    with pytest.raises(PlannerError) as caught:
        read_plan(plan)
    assert field in str(caught.value)
    assert "can't be read" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "x\\", "#"]
)
def test_a_launch_script_runs_no_name(tmp_path: Path, name: str) -> None:
    """What a plan calls its model or cluster is words in a script, never a command."""
    plan = PLAN_WITH_SHAPE | {"model": name, "shape": PLAN_WITH_SHAPE["shape"] | {"name": name}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "megatron", "-o", str(tmp_path / "run.sh")]).code == 0
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", "run.sh"], cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True,
        text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert "syntax error" not in done.stderr
    assert not (tmp_path / "pwned").exists()


def test_loading_runs_nothing(tmp_path: Path) -> None:
    """No reader of ours evaluates: neither Python in a TOML or JSON file, nor a pickle in a checkpoint."""
    import numpy as np

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    for text in ("!!python/object/apply:os.mkdir [exploded]", "__import__('os').mkdir('exploded')"):
        (tmp_path / "m.toml").write_text(MODEL.replace("mine", text))
        planner("planner models m.toml", tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "' + text + '"}')
        one_line(planner("planner models config.json", tmp_path))
    folder = tmp_path / "saved"
    folder.mkdir()
    small = "planner train --scale tiny --steps 1 --micro-batch 1 --micro-batches 1 --checkpoint saved"
    assert planner(small + " --checkpoint-every 1", tmp_path).returncode == 0
    part = next(folder.glob("*.npz"))
    with part.open("wb") as stream:
        np.savez(stream, bomb=np.array([Bomb()], dtype=object))
    one_line(planner(small.replace("--steps 1", "--steps 2"), tmp_path), "damaged checkpoint")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "asked",
    ["--pp 1000", "--micro-batches 10000000", "--micro-batch 10000000", "--dp 300", "--pp 200 --micro-batches 9999"],
)
def test_training_that_would_take_hours_or_all_memory_is_refused_at_once(asked: str) -> None:
    outcome = run(["train", "--scale", "tiny", "--steps", "1", *asked.split()], 20.0)
    assert (outcome.code, outcome.crash) == (2, "")
    assert "allowed: " in outcome.stderr


@pytest.mark.parametrize("option", ["--dp", "--tp", "--pp", "--micro-batches", "--virtual-stages", "--slices"])
def test_training_on_a_thousand_million_of_anything_is_refused(option: str) -> None:
    schedule = {"--virtual-stages": "breadth-first", "--slices": "seq1f1b"}.get(option, "1f1b")
    more = ["--pp", "2"] if option == "--virtual-stages" else []
    outcome = run(["train", "--scale", "tiny", "--steps", "1", "--schedule", schedule, *more, option, "1000000000"])
    assert (outcome.code, outcome.crash) == (2, "")
    assert "1000000000" in outcome.stderr.replace(",", "")
