"""Start a broker, a worker, or a launcher of both, in a process of its own that hangs on a lifeline.

What the process then does is ``launcher.py``'s matter; it is not imported here, since web processes start
such parts, too.
"""

from __future__ import annotations

import os
import sys
from typing import Literal

import msgspec

from zbatch.config import Settings
from zbatch.model_metrics import Shelf
from zbatch.processes import Child

Role = Literal["broker", "worker", "serve", "gateway"]

PROGRAMS = {"gateway": "zbatch.gateway"}
"""What is run for a part that the launcher's module is not."""

FOR_ITS_MANAGER = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
"""What a service manager tells the process that it has started, and no other."""


def spawn_part(
    role: Role,
    name: str,
    settings: Settings,
    *,
    silent: bool = False,
    shelf: tuple[Shelf, int] | None = None,
    tells: str = "",
) -> Child:
    """Start a part with its settings; see :meth:`Child.spawn`.

    ``name`` is what a list of processes shows; of ``serve`` it is the folder of the private endpoint.
    ``shelf`` is where a gateway shows the others of its kind what it counts, and which of them it is.
    ``tells`` is the socket at which it is to say that it serves; whoever watches this process hears nothing.
    """
    env = {name: value for name, value in os.environ.items() if name not in FOR_ITS_MANAGER}
    if tells:
        env["NOTIFY_SOCKET"] = tells
    argv = [sys.executable, "-m", PROGRAMS.get(role, "zbatch.launcher"), role, name]
    if shelf is not None:
        argv.append(shelf[0].told(shelf[1]))
    return Child.spawn(
        argv,
        env=env,
        config=msgspec.json.encode(settings),
        silent=silent,
        kept=shelf[0].descriptors if shelf is not None else (),
    )
