"""Make a virtual environment once, and again only when what it is made of has changed.

``make`` calls this before everything that needs packages.  It decides whether the environment at hand
will do, by a digest of all that was asked for; what to install is said by the Makefile alone.  It runs
on whatever ``python3`` a machine has, so it uses no syntax that Python 3.6 could not read.
"""

import argparse
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import time

WANTED = (3, 11)
NOTE_EVERY = 5.0
"""Seconds between signs of life where the output is no terminal (there: every half second)."""


def main():
    """Make what was asked for; the exit code says whether it stands."""
    asked = parse()
    if asked.newest:
        print(newest())
        return 0
    if sys.version_info[:2] < WANTED:
        return complain(
            f"zbatch needs Python {WANTED[0]}.{WANTED[1]} or newer, and {sys.executable} is "
            f"{sys.version_info[0]}.{sys.version_info[1]}. "
            f"Name another one: make ... PYTHON={newest() or 'python3.12'}"
        )
    stamp = os.path.join(asked.path, "made-of")
    digest = digest_of(asked)
    if os.path.exists(stamp) and read(stamp) == digest:
        return 0
    print(f"{asked.path}: making it (once; later runs reuse it)", flush=True)
    python = os.path.join(asked.path, "bin", "python")
    log = os.path.join(asked.path, "install.log")
    if os.path.isdir(asked.path):
        shutil.rmtree(asked.path)
    os.makedirs(asked.path)
    for title, command in steps(asked, python):
        if not run(title, command, log):
            return complain(
                f"{asked.path}: {title} failed, see above and {log}. "
                "Is the network there? The same `make` tries again."
            )
    with open(stamp, "w") as file:
        file.write(digest)
    return 0


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", help="where the environment is")
    parser.add_argument("-e", "--editable", default="", help="a project to install in place, e.g. '.[dev]'")
    parser.add_argument("-r", "--requirements", action="append", default=[], help="a requirements file")
    parser.add_argument("--no-deps", action="append", default=[], help="one to install without dependencies")
    parser.add_argument("--torch", default="", help="torch's requirement; empty: no torch")
    parser.add_argument("--newest", action="store_true", help="only print the newest Python of this machine")
    asked = parser.parse_args()
    if not asked.newest and not asked.path:
        parser.error("say where the environment is to be")
    return asked


def digest_of(asked):
    """Return a digest of all that the environment is made of."""
    parts = [repr(sorted(vars(asked).items())), sys.version, os.path.abspath(asked.path)]
    parts += [read(path) for path in asked.requirements + asked.no_deps]
    if asked.editable:
        # Not all of the file: how the code is linted is no reason to install it again.
        import tomllib

        project = tomllib.loads(read("pyproject.toml"))
        parts.append(repr([project.get("build-system"), project.get("project")]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def steps(asked, python):
    """Return what has to be run, each with a title for people."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install"]
    yield "an empty environment", [sys.executable, "-m", "venv", asked.path]
    if asked.torch:
        yield asked.torch, [*pip, *asked.torch.split()]
    packages = [word for path in asked.requirements for word in ("-r", path)]
    if packages:
        yield "the packages of " + ", ".join(asked.requirements), [*pip, *packages]
    for path in asked.no_deps:
        yield "the packages of " + path, [*pip, "--no-deps", "-r", path]
    if asked.editable:
        yield "zbatch", [*pip, "-e", asked.editable]


def run(title, command, log):
    """Run one step, showing that it lives; print the end of its output if it failed."""
    began = time.time()
    shown = began
    terminal = sys.stdout.isatty()
    with open(log, "ab") as out:
        start = out.tell()
        # pip's own bar is for terminals and long; what people need is what, how long, and how much.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        while child.poll() is None:
            time.sleep(0.1)
            now = time.time()
            if now - shown >= (0.5 if terminal else NOTE_EVERY):
                shown = now
                note(title, now - began, last_download(log, start), terminal)
    if terminal:
        sys.stdout.write("\r\033[K")
    print(f"  {title:<48} {time.time() - began:5.1f} s", flush=True)
    if child.returncode:
        print("".join(read(log, start).splitlines(True)[-25:]), flush=True)
    return child.returncode == 0


def note(title, seconds, doing, terminal):
    """Show how long a step has run, and what pip says it is at."""
    line = f"  {title} ... {seconds:.0f} s  {doing}"
    if terminal:
        sys.stdout.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
        sys.stdout.flush()
    else:
        print(line, flush=True)


def last_download(log, start):
    """Return the last thing that pip said it downloads or installs, shortened."""
    words = ("Downloading", "Installing", "Building", "Preparing", "Using cached")
    lines = [line.strip() for line in read(log, start).splitlines()]
    said = [line for line in lines if line.startswith(words)]
    return said[-1].split("/")[-1][:70] if said else ""


def newest():
    """Return the path of the newest Python that starts and will do, or nothing."""
    found = []
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found += glob.glob(os.path.join(folder, "python3.[0-9]*"))
    # Version managers keep what is not selected beside what is.
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found += glob.glob(os.path.join(root, "versions", "*", "bin", "python3.[0-9]*"))
    best, path = sys.version_info[:2], sys.executable if sys.version_info[:2] >= WANTED else ""
    for candidate in found:
        version = os.path.basename(candidate).replace("python", "").split(".")
        if len(version) == 2 and version[1].isdigit() and (3, int(version[1])) > best and starts(candidate):
            best, path = (3, int(version[1])), candidate
    return path


def starts(python):
    """Whether this is a Python that runs and can make environments (a version manager's stub may not)."""
    command = [python, "-c", "import venv, ensurepip"]
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def read(path, start=0):
    """Return a file's text from that byte on; that of a file that is not there is empty."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def complain(sentence):
    """Say what is wrong and what to do; return the exit code for it."""
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
