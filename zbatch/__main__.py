"""``python -m zbatch``: the command line."""

from __future__ import annotations

from zbatch.cli import main

if __name__ == "__main__":
    main(prog_name="zbatch")
