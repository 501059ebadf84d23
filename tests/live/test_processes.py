"""Children that live, die, are ended and never left behind: with real processes and signals."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.shell import ROOT
from zbatch.config import WorkerSettings
from zbatch.journal import Journal
from zbatch.processes import Child, Note
from zbatch.worker import Supervisor

pytestmark = pytest.mark.live

PATIENCE = 30.0
"""A guard against hanging; what is waited for comes within a fraction of a second."""

TIED = """
import os, sys
sys.path[:0] = {path!r}
from zbatch.processes import Note, die_with_parent
config, note, lifeline = map(int, sys.argv[-3:])
die_with_parent(lifeline)
note = Note.attach(note)
"""
"""How each child begins."""

SLEEP = "import time\ntime.sleep(1000)\n"

Spawn = Callable[..., Child]


def program(body: str) -> list[str]:
    return [sys.executable, "-c", TIED.format(path=sys.path) + body]


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def number_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.fixture
def note() -> Iterator[Note]:
    note = Note.create()
    yield note
    note.close()


@pytest.fixture
def spawn(note: Note) -> Iterator[Spawn]:
    """Start children, and end what a test leaves."""
    started: list[Child] = []

    def start(body: str) -> Child:
        child = Child.spawn(program(body), config=b"hello", note=note)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        assert child.wait(PATIENCE) is not None
        child.close()


def test_a_death_is_seen_at_once_and_the_note_tells_of_the_last_moment(spawn: Spawn, note: Note) -> None:
    child = spawn("note.show('ready')\nnote.begin(b'epoch  1', 7, 60.0)\n" + SLEEP)
    until(lambda: note.read().begun == 7)
    assert child.poll() is None
    deaths = select.poll()
    deaths.register(child.fileno(), select.POLLIN)
    assert deaths.poll(0) == []
    os.kill(child.pid, signal.SIGKILL)
    assert deaths.poll(PATIENCE * 1000) != []
    assert child.poll() == -signal.SIGKILL
    seen = note.read()
    assert (seen.begun, seen.finished, seen.state) == (7, 0, "ready")


def test_an_exit_status_is_told(spawn: Spawn) -> None:
    child = spawn("sys.exit(3)")
    assert child.wait(PATIENCE) == 3
    assert child.poll() == 3
    child.terminate()
    child.kill()


def test_a_child_reads_its_config_and_the_orders_on_its_lifeline(spawn: Spawn, note: Note) -> None:
    child = spawn(
        "assert os.read(config, 100) == b'hello'\nnote.show(os.read(lifeline, 10).decode())\n" + SLEEP
    )
    child.order(b"drain")
    until(lambda: note.read().state == "drain")


def test_orders_to_one_that_does_not_listen_block_nobody(spawn: Spawn) -> None:
    child = spawn(SLEEP)
    for _ in range(70):
        child.order(b"x" * 1_000)
    child.kill()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    child.order(b"x")


def test_stopping_waits_for_the_polite_and_ends_the_stubborn(spawn: Spawn, note: Note) -> None:
    polite = spawn("note.show('polite')\nos.read(lifeline, 1)\nsys.exit(5)\n")
    until(lambda: note.read().state == "polite")
    assert polite.stop(PATIENCE) == 5
    stubborn = spawn("note.show('stubborn')\n" + SLEEP)
    until(lambda: note.read().state == "stubborn")
    assert stubborn.wait(0.0) is None
    assert stubborn.stop(0.05) == -signal.SIGKILL


GRANDCHILD = """
import subprocess
started = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])
with open({path!r}, 'w') as file:
    print(started.pid, file=file)
"""


@pytest.mark.parametrize("end", ["SIGKILL from outside", "kill", "its own exit"])
def test_what_a_child_started_ends_with_it(spawn: Spawn, tmp_path: Path, end: str) -> None:
    path = tmp_path / "pid"
    last = "os._exit(1)\n" if end == "its own exit" else SLEEP
    child = spawn(GRANDCHILD.format(path=str(path)) + last)
    grandchild = number_in(path)
    if end == "kill":
        child.kill()
    elif end != "its own exit":
        os.kill(child.pid, signal.SIGKILL)
    assert child.wait(PATIENCE) is not None
    until(lambda: is_gone(grandchild))


PARENT = """
import sys, time
sys.path[:0] = {path!r}
from zbatch.processes import Child, Note
child = Child.spawn({argv!r}, config=b'hello', note=Note.create())
with open({pid!r}, 'w') as file:
    print(child.pid, file=file)
time.sleep(1000)
"""


def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    ready = tmp_path / "ready"
    argv = program(f"open({str(ready)!r}, 'w').write('1')\n" + SLEEP)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(path=sys.path, argv=argv, pid=str(path))],
        stdout=subprocess.DEVNULL,
    )
    child = number_in(path)
    until(ready.exists)
    parent.kill()
    parent.wait(PATIENCE)
    until(lambda: is_gone(child))


def test_a_child_whose_parent_died_before_it_began_ends_itself() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    body = f"die_with_parent({reader})\nprint('still here')\n"
    head = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom zbatch.processes import die_with_parent\n"
    found = subprocess.run(
        [sys.executable, "-c", head + body],
        pass_fds=(reader,),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    os.close(reader)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def test_a_child_whose_parent_lives_goes_on() -> None:
    body = "die_with_parent()\nprint('still here')\n"
    head = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom zbatch.processes import die_with_parent\n"
    found = subprocess.run(
        [sys.executable, "-c", head + body], capture_output=True, timeout=PATIENCE, check=False
    )
    assert found.stdout == b"still here\n"


def test_a_program_that_cannot_be_started_leaves_nothing_open(note: Note) -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        Child.spawn(["/no/such/program"], config=b"", note=note)
    assert psutil.Process().num_fds() == before


def test_what_one_child_is_told_by_environment_neither_this_process_nor_the_next_child_sees(
    tmp_path: Path,
) -> None:
    before = dict(os.environ)
    line = "import os, sys; open(sys.argv[1], 'w').write(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    for name, env in (("0", {"CUDA_VISIBLE_DEVICES": "7"}), ("1", None)):
        child = Child.spawn([sys.executable, "-c", line, str(tmp_path / name)], env=env)
        assert child.wait(PATIENCE) == 0
        child.close()
    assert [(tmp_path / name).read_text() for name in "01"] == [
        "'7'",
        repr(before.get("CUDA_VISIBLE_DEVICES")),
    ]
    assert dict(os.environ) == before


def test_a_child_needs_no_config() -> None:
    child = Child.spawn([sys.executable, "-c", "raise SystemExit(4)"])
    assert child.wait(PATIENCE) == 4
    child.order(b"x")
    child.close()


def test_a_child_that_somebody_else_buried_is_seen_as_gone() -> None:
    child = Child.spawn([sys.executable, "-c", ""])
    os.waitpid(child.pid, 0)
    assert child.poll() is not None
    child.kill()
    child.close()


def test_a_supervisor_that_is_closed_leaves_nothing_open_and_nobody_unburied(tmp_path: Path) -> None:
    process = psutil.Process()
    before = process.num_fds(), process.children()
    settings = WorkerSettings(
        f"{ROOT}/examples/doubler.py:Doubler", gpu=("cpu",), backend=(f"ipc://{tmp_path}/back",)
    )
    journal = Journal(write=lambda _: None)
    supervisor = Supervisor(settings, journal)
    supervisor.stop()
    supervisor.stop()
    assert supervisor.run() == 0
    supervisor.close()
    supervisor.stop()
    journal.close()
    assert (process.num_fds(), process.children()) == before


REAPER = """
import ctypes, os, subprocess, sys, time
sys.path[:0] = {path!r}
import psutil
from zbatch.processes import reap_strangers

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
own = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])
reap_strangers([own.pid])
middle = subprocess.run(
    ['/bin/sh', '-c', 'sleep 0.01 >/dev/null & echo $!'], stdout=subprocess.PIPE, check=True
)
orphan = int(middle.stdout)
while psutil.pid_exists(orphan):
    reap_strangers([own.pid])
    time.sleep(0.005)
own.kill()
while psutil.Process(own.pid).status() != psutil.STATUS_ZOMBIE:
    time.sleep(0.005)
reap_strangers([own.pid])
print(own.wait())
reap_strangers([])
"""


def test_the_first_process_of_a_container_buries_the_orphans_that_it_is_given() -> None:
    # A subreaper is given orphans as pid 1 is.
    found = subprocess.run(
        [sys.executable, "-c", REAPER.format(path=sys.path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (found.stdout, found.stderr) == (f"-{int(signal.SIGKILL)}\n", "")
