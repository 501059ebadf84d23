"""``python -m zbatch`` and the script ``zbatch``: the command line.

It is imported where Ctrl-C is already waited for: to load it takes a tenth of a second, in which some
change their mind.
"""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; interrupted at any moment, it ends as a shell would have it."""
    try:
        from zbatch.cli import main  # noqa: PLC0415

        main(prog_name="zbatch")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
