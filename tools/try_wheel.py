"""Install the wheel that was built into an empty environment and let it answer one request.

What a user gets is the wheel, not this folder: a module, a type marker or a dependency that was forgotten
shows here and nowhere else.  Runs in an empty directory, so that nothing of the sources can help.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODEL = """\
def double(batch):
    return [2 * item for item in batch]
"""

ASK = """\
import sys
from zbatch import ZClient
with ZClient(sys.argv[1], topic="double", timeout=60) as client:
    print(client.predict([1, 2.5, 21]))
"""

WANTED = "[2, 5.0, 42]"
MUST_HAVE = ["zbatch/py.typed", "zbatch/core/broker.py"]


def main() -> int:
    """Try the one wheel in the folder that is named; the exit code says whether it works."""
    wheel = next(Path(sys.argv[1]).resolve().glob("*.whl"))
    missing = sorted(set(MUST_HAVE) - set(zipfile.ZipFile(wheel).namelist()))
    if missing:
        print(f"{wheel.name} lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="zbatch-dist-") as folder:
        answer = install_and_ask(wheel, Path(folder))
    if answer != WANTED:
        print(f"{wheel.name}: wanted {WANTED}, got {answer!r}", file=sys.stderr)
        return 1
    print(f"{wheel.name}: installed into an empty environment, asked [1, 2.5, 21], got {answer}")
    return 0


def install_and_ask(wheel: Path, folder: Path) -> str:
    """Return what a client of the installed wheel prints."""
    programs = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip: list[str | Path] = [
        programs / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    print(f"installing {wheel.name} into an empty environment ...", flush=True)
    subprocess.run([*pip, wheel], check=True)
    (folder / "model.py").write_text(MODEL)
    endpoint = f"ipc://{folder}/front"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    serve = f"serve model.py:double --topic double --gpu cpu --frontend {endpoint}"
    served = subprocess.Popen([programs / "zbatch", *serve.split()], cwd=folder, env=environment)
    try:
        asked = subprocess.run(
            [programs / "python", "-c", ASK, endpoint],
            cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        served.send_signal(signal.SIGTERM)
        served.wait(timeout=60)
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
