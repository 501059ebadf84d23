"""What a gateway needs before it serves."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["httptools", "jsonschema_rs", "prometheus_client"])
def test_without_a_library_of_the_extra_a_sentence_says_what_to_install(name: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules[{name!r}] = None\n"
        "sys.argv[1:] = ['gateway', '--http', '127.0.0.1:0']\n"
        "from zbatch.__main__ import run\n"
        "run()\n"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"Error: the gateway needs {name}; install zbatch[http]\n"
