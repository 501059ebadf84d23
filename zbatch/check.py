"""``zbatch check``: whether a model is fit to be served, and in batches of what size.

The model is tried in a process of its own (``trial.py``), as a worker would start it; here it is started,
watched, and what it found is shown.  Exit codes: 0 it is fit, 1 it fails, 2 it was called wrongly or
what was named is no model.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from zbatch import trial
from zbatch.config import CheckSettings
from zbatch.errors import ConfigError
from zbatch.gpus import Slot, choose
from zbatch.model import check_name
from zbatch.processes import KILL_PATIENCE, Child
from zbatch.screen import NOTHING, console, milliseconds, number, plain, seconds
from zbatch.trial import Report, Size, Spec

ENOUGH = 0.9
"""Of the best items/s: what a batch gains beyond it is paid for with latency."""

LOOK = 1.0
"""Seconds between two looks at whether the process still runs; its end is seen at once."""

LONG = 10.0
"""Seconds after which it is said what the trial is still doing; the next time after twice as long."""


def run(settings: CheckSettings) -> int:
    """Try a model, say what was found, and return the exit code.

    Raises :class:`ConfigError` for a model, arguments or a GPU that are not there, and where there is nothing
    to run.
    """
    check_name(settings.model)
    slot = choose(settings.gpu, 1)[0]
    report = _tried(settings, slot)
    report.suggested_batch_size = suggested(report.sizes)
    if report.misused:
        raise ConfigError(str(report.failed))
    if settings.json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    else:
        console().print(render(report))
    if report.failed is None:
        return 0
    if not settings.json:
        _tell(report)
    return 1


def suggested(sizes: Sequence[Size]) -> int | None:
    """Return the smallest batch size that reaches :data:`ENOUGH` of the best items/s."""
    best = max((one.items_per_s for one in sizes), default=0.0)
    return next((one.items for one in sizes if one.items_per_s >= ENOUGH * best), None)


def _tried(settings: CheckSettings, slot: Slot) -> Report:
    with tempfile.TemporaryDirectory(prefix="zbatch-check-") as home:
        path = Path(home) / "report.json"
        spec = Spec(
            settings.model,
            dict(settings.args),
            settings.batch_size,
            settings.duration,
            settings.item,
            slot.device,
            "" if slot.device == "cpu" else slot.gpu,
            str(path),
        )
        child = Child.spawn(
            [sys.executable, "-m", "zbatch.trial"],
            config=msgspec.json.encode(spec),
            env=os.environ | slot.env,
        )
        watch = _Watch(settings.patience)
        try:
            while (status := child.wait(LOOK)) is None and not watch.is_over(_found(path)):
                pass
        finally:
            child.kill()
            child.wait(KILL_PATIENCE)
            child.close()
        report = _found(path) or Report(settings.model, slot.device)
    if status is None:
        doing = "its end" if report.doing == trial.NOTHING else report.doing
        report.failed = f"{doing} took more than {settings.patience:g} s (--patience)"
    elif report.failed is None and report.doing != trial.NOTHING:
        report.failed = f"its process ended with {_word(status)} while {report.doing}"
    return report


def _found(path: Path) -> Report | None:
    """Return what was found so far."""
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None


class _Watch:
    """Sees that a trial goes on, and says so where it takes long."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._doing = ""
        self._since = time.monotonic()
        self._says = LONG

    def is_over(self, report: Report | None) -> bool:
        """Return whether what the trial is doing has taken too long."""
        now, doing = time.monotonic(), "starting" if report is None else report.doing
        if doing != self._doing:
            self._doing, self._since, self._says = doing, now, LONG
        took = now - self._since
        if took >= self._says:
            self._says *= 2
            print(f"still {doing}, for {took:.0f} s", file=sys.stderr, flush=True)
        return took > self._patience


def _word(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


# --- how it looks --------------------------------------------------------------------------------


def render(report: Report) -> RenderableType:
    """Return what was found, for people."""
    parts: list[RenderableType] = [_facts(report)]
    if report.sizes:
        parts.append(_sizes(report.sizes))
    if report.suggested_batch_size is not None and report.failed is None:
        parts.append(Text(_suggestion(report.suggested_batch_size, report.sizes)))
    parts += [Text(plain(f"note: {note}"), "yellow") for note in report.notes]
    return Group(*parts)


def _suggestion(best: int, sizes: Sequence[Size]) -> str:
    text = f"suggested: --batch-size {best}, the smallest that reaches {ENOUGH:.0%} of the best items/s"
    return f"{text}; a larger one was not tried" if best == sizes[-1].items > 1 else text


def _facts(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in (
        ("model", f"{report.model} on {report.device}"),
        ("loaded", f"in {seconds(report.load_s)}, warmed up in {seconds(report.warm_up_s)}"),
        ("memory", _memory(report)),
        ("items", f"{report.item_type or 'of no declared type'}, tried with {report.item_from or NOTHING}"),
        ("outputs", report.output_type or "of no declared type"),
        ("signature", _signature(report)),
        ("bad item", report.bad_item or "not tried"),
    ):
        table.add_row(Text(name, "bold"), Text(plain(text)))
    return table


def _memory(report: Report) -> str:
    text = (
        f"{size(report.rss_before_bytes)} before, {size(report.rss_loaded_bytes)} loaded, "
        f"{size(report.rss_peak_bytes)} at the most"
    )
    return text if report.gpu_bytes is None else f"{text}; on the GPU {size(report.gpu_bytes)}"


def _signature(report: Report) -> str:
    if report.signature is None:
        return "none"
    return " -> ".join(
        ", ".join(f"{one['name']} {one['datatype']} {one['shape']}" for one in report.signature[side])
        for side in ("inputs", "outputs")
    )


def _sizes(sizes: Sequence[Size]) -> Table:
    on_gpu = any(one.gpu_bytes is not None for one in sizes)
    in_steps = any(one.first_ms is not None for one in sizes)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ["batch", "runs", "time", "items/s"] + ["first step"] * in_steps + ["GPU memory"] * on_gpu:
        table.add_column(title, justify="right")
    for one in sizes:
        row = [number(one.items), number(one.runs), milliseconds(one.batch_ms), number(one.items_per_s)]
        row += [milliseconds(one.first_ms)] * in_steps
        row += [size(one.gpu_bytes)] * on_gpu
        table.add_row(*row)
    return table


def size(count: int | None) -> str:
    """Return bytes in the unit that people would use."""
    if not count:
        return NOTHING
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1024:.0f} KiB"


def _tell(report: Report) -> None:
    err = Console(stderr=True, soft_wrap=True)
    err.print(Text(plain(f"failed: {report.failed}"), "red"))
    if report.traceback:
        sys.stderr.write(report.traceback.rstrip() + "\n")
