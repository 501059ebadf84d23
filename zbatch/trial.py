"""A model on trial, in a process of its own: loaded, warmed up and run as a worker would, with nobody asking.

The process that ``zbatch check`` starts.  Items go through the same codec and the same :class:`Runner` as in
a worker, in batches of 1, 2, 4 and so on.  What was found so far lies in a file after every step, so that
``check.py`` also knows it of a model that ends its process; how it looks and what follows is said there.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from zbatch import payload
from zbatch.declared import Declared, plain
from zbatch.errors import BadInput, BadOutput, ConfigError, text_of
from zbatch.memory import is_short, release
from zbatch.messages import Fault
from zbatch.model import Context, LoadedModel, load, outputs_of
from zbatch.notation import json_or_text
from zbatch.nvml import Gpus
from zbatch.processes import die_with_parent
from zbatch.runner import Ran, Runner, Work
from zbatch.signature import BYTES, DTYPES, Signature
from zbatch.steps import is_generator, whole_of

ROUNDS = 5
"""Times that it is each size's turn to be measured."""

NOTHING = "nothing"
"""What is being done once all was tried."""

COMPANY = 4
"""Items in the batch of which one is bad."""

LAST_WORDS = 5.0
"""Seconds that a model gets to close."""

STRANGER = {"zbatch check": "no item of this model"}
"""What stands for a bad item where a model does not say what it takes."""

STRANGERS: tuple[Any, ...] = (STRANGER, None, [], "no item of this model", -1)
"""The first of these that is not of the declared type is the bad item."""


class Spec(msgspec.Struct, frozen=True):
    """What is to be tried."""

    model: str
    args: dict[str, Any]
    batch_size: int
    seconds: float
    """How long each batch size is measured."""
    item: str | None
    """What to run, as a command line says it; None: the model's own example."""
    device: str
    gpu: str
    report: str
    """The file to write to."""


class Size(msgspec.Struct):
    """Batches of so many items."""

    items: int
    runs: int
    batch_ms: float
    """What a run takes, decoding and encoding included: the first quartile."""
    items_per_s: float
    gpu_bytes: int | None
    first_ms: float | None = None
    """Of a model that yields steps, until the first of them: the first quartile, too."""


class Report(msgspec.Struct):
    """What was found so far."""

    model: str
    device: str
    doing: str = "starting"
    """What it was about to do, for a process that ended over it."""
    load_s: float | None = None
    warm_up_s: float | None = None
    item_from: str | None = None
    item_type: str | None = None
    output_type: str | None = None
    signature: Any = None
    schema: Any = None
    rss_before_bytes: int = 0
    rss_loaded_bytes: int = 0
    rss_peak_bytes: int = 0
    gpu_bytes: int | None = None
    sizes: list[Size] = []
    bad_item: str | None = None
    """What became of a bad item, and of its neighbours."""
    notes: list[str] = []
    failed: str | None = None
    traceback: str = ""
    misused: bool = False
    """Nothing was tried: it was called wrongly."""
    suggested_batch_size: int | None = None


class Fails(Exception):
    """The model fails; the text says at what."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class _TooLarge(Exception):
    """A batch for which memory is short."""


class Misused(Exception):
    """There is nothing to try."""


class _FirstStep:
    """The sink of a batch that nobody reads part by part: notes when the first step came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.at: float | None = None

    def is_streamed(self, place: int) -> bool:
        return False

    def is_wanted(self, place: int) -> bool:
        return True

    def put(self, parts: list[tuple[int, Any, Sequence[Any]]], ended: list[tuple[int, Fault | None]]) -> None:
        if self.at is None:
            self.at = self._clock()

    def wait(self, places: Sequence[int]) -> None:
        pass


class Trial:
    """Tries one model and writes down what it finds."""

    def __init__(
        self, spec: Spec, keep: Callable[[Report], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._spec = spec
        self._keep = keep
        self._clock = clock
        self._gpu = GpuMemory(Gpus([spec.gpu] if spec.gpu else []))
        self._runs: dict[int, list[float]] = {}
        """Of each batch size, how long each run took."""
        self._firsts: dict[int, list[float]] = {}
        """The same until the first step, of a model that yields steps."""
        self._parts = 0
        """Runs that were parts of one that had failed."""
        self._peaks: dict[int, int | None] = {}
        self.report = Report(spec.model, spec.device)

    def run(self) -> None:
        """Try everything; whatever the model raises stands in the report then."""
        try:
            self._try()
        except (Fails, Misused) as error:
            self.report.failed = str(error)
            self.report.traceback = error.trace if isinstance(error, Fails) else ""
            self.report.misused = isinstance(error, Misused)
        else:
            self.report.doing = NOTHING
        self._measure_memory()
        self._keep(self.report)

    def _try(self) -> None:
        self.report.rss_before_bytes = psutil.Process().memory_info().rss
        model = self._load()
        item = self._item_of(model)
        alone = self._sent(item)
        runner = Runner(model, on_progress=self._in_parts)
        for size in sizes_up_to(self._spec.batch_size):
            self._about(f"running a batch of {size}")
            try:
                output = self._run_once(model, alone, size)
            except _TooLarge as error:
                self.report.notes.append(f"a batch of {size} does not fit into memory: {error}")
                release()
                break
            if size == 1:
                self._look_at_output(model, output)
            self._time(runner, alone, size, 0.0)
        self._about("measuring")
        # In turns, so that what else this host does falls on all sizes alike.
        for _ in range(ROUNDS):
            for one in self.report.sizes:
                self._time(runner, alone, one.items, self._spec.seconds / ROUNDS)
        self._isolate(model, runner, alone)
        self._close(model)

    def _about(self, doing: str) -> None:
        self.report.doing = doing
        self._measure_memory()
        self._keep(self.report)

    def _measure_memory(self) -> None:
        # The kernel counts its own peak less exactly than what there is now.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        now = psutil.Process().memory_info().rss
        self.report.rss_peak_bytes = max(most, now, self.report.rss_loaded_bytes)
        self.report.gpu_bytes = self._gpu.held()

    # --- before anything runs ----------------------------------------------------------------------

    def _load(self) -> LoadedModel:
        spec, report = self._spec, self.report
        self._about("loading")
        began = self._clock()
        try:
            model = load(spec.model, spec.args, Context(spec.device, gpu=spec.gpu))
        except ConfigError as error:
            raise Misused(str(error)) from None
        except BaseException as error:
            raise _fails("the model cannot be loaded", error) from None
        report.load_s = round(self._clock() - began, 3)
        self._about("warming up")
        began = self._clock()
        try:
            model.warm_up()
            facts = model.facts()
        except ConfigError as error:
            raise Fails(str(error)) from None
        except BaseException as error:
            raise _fails("the model cannot be warmed up", error) from None
        report.warm_up_s = round(self._clock() - began, 3)
        report.rss_loaded_bytes = psutil.Process().memory_info().rss
        declared = model.declared
        report.item_type = None if declared.item is None else str(declared.item)
        report.output_type = None if declared.output is None else str(declared.output)
        report.notes += declared.ignored
        report.signature = msgspec.json.decode(facts.signature) if facts.signature else None
        report.schema = msgspec.json.decode(model.schema) if model.schema else None
        if model.schema and not facts.schema:
            report.notes.append(
                f"its types have {len(model.schema)} bytes in JSON, too many to be told to a broker"
            )
        return model

    def _item_of(self, model: LoadedModel) -> Any:
        if self._spec.item is not None:
            self.report.item_from = "--item"
            return json_or_text(self._spec.item)
        if model.example is not model.MISSING:
            self.report.item_from = "its example"
            return model.example
        if model.signature is not None:
            self.report.item_from = "zeros of its signature"
            return model.signature.zeros()
        raise Misused(
            f"{self._spec.model} was loaded, but there is nothing to run: it has no example and no "
            "signature; give it one, or say --item"
        )

    def _sent(self, item: Any) -> tuple[bytes, Sequence[Any]]:
        """Return an item as a client would send it."""
        try:
            return payload.encode(plain(item))
        except TypeError as error:
            raise Fails(f"{self.report.item_from} cannot be sent: {error}") from None

    # --- runs --------------------------------------------------------------------------------------

    def _run_once(self, model: LoadedModel, alone: tuple[bytes, Sequence[Any]], size: int) -> Any:
        """Run a batch as the runner would not: without a second try.  Return the first output, as sent."""
        read = model.declared.reading(payload.decode_read_only)
        write = model.declared.writing(payload.encode)
        doing = f"a batch of {size}"
        try:
            items = [read(*alone) for _ in range(size)]
        except BadInput as error:
            raise Fails(f"{self.report.item_from} is not what its predict declares: {error}") from None
        try:
            results = model.predict(items)
            outputs = whole_of(results, size) if is_generator(results) else outputs_of(results, size)
            for output in outputs:
                if isinstance(output, BaseException):
                    raise output
        except BadOutput as error:
            raise Fails(f"{doing}: {error}") from None
        except BaseException as error:
            if size > 1 and is_short(error):
                raise _TooLarge(f"{type(error).__name__}: {text_of(error)}") from None
            raise _fails(f"the model fails at {doing}", error) from None
        try:
            sent = [_written(write, output) for output in outputs]
        except TypeError as error:
            said = str(error).replace("item", "output", 1)
            raise Fails(f"an output of {doing} cannot be sent: {said}") from None
        return payload.decode(*sent[0])

    def _look_at_output(self, model: LoadedModel, output: Any) -> None:
        if model.signature is not None:
            try:
                model.signature.check_output(_tensors(output, model.signature))
            except BadOutput as error:
                raise Fails(f"what it returns is not of its signature: {error}") from None
        if model.declared.output is not None:
            try:
                model.declared.output.convert(output)
            except BadInput as error:
                self.report.notes.append(f"what it returns is not what its predict declares: {error}")

    def _time(self, runner: Runner, alone: tuple[bytes, Sequence[Any]], size: int, seconds: float) -> None:
        """Run batches of a size for so long, at least one."""
        self._gpu.forget()
        runs = self._runs.setdefault(size, [])
        spent = 0.0
        while True:
            first = _FirstStep(self._clock)
            work = _work([alone] * size)._replace(sink=first)
            began = self._clock()
            ran = runner.run(work)
            runs.append(self._clock() - began)
            spent += runs[-1]
            if first.at is not None:
                self._firsts.setdefault(size, []).append(first.at - began)
            if ran.errors is not None:
                place, fault = ran.errors[0]
                said = f"run {len(runs)} of a batch of {size}, item {place}: {_said(fault)}"
                raise Fails(said, fault.traceback)
            if self._parts:
                raise Fails(
                    f"run {len(runs)} of a batch of {size} failed as a whole; in parts it went through"
                )
            if spent >= seconds:
                break
        self._peaks[size] = self._gpu.peak()
        self._add_up()

    def _in_parts(self) -> None:
        self._parts += 1

    def _add_up(self) -> None:
        quick = {size: _quick(runs) for size, runs in self._runs.items()}
        self.report.sizes = [
            Size(
                size,
                len(runs),
                round(quick[size] * 1000, 4),
                round(size / quick[size], 1),
                self._peaks[size],
                round(_quick(self._firsts[size]) * 1000, 4) if size in self._firsts else None,
            )
            for size, runs in self._runs.items()
        ]

    # --- a bad item --------------------------------------------------------------------------------

    def _isolate(self, model: LoadedModel, runner: Runner, alone: tuple[bytes, Sequence[Any]]) -> None:
        count = min(COMPANY, self.report.sizes[-1].items)
        if count == 1:
            self.report.bad_item = "not tried: there is one item in a batch"
            return
        self._about("running a batch with a bad item")
        batch = [alone] * count
        batch[1] = payload.encode(_stranger(model.declared))
        errors = dict(runner.run(_work(batch)).errors or ())
        hurt = [place for place in errors if place != 1]
        if not errors:
            self.report.bad_item = "taken for a good one: the model does not tell"
        elif not hurt:
            self.report.bad_item = f"failed alone: {_said(errors[1])}"
        elif not model.idempotent:
            self.report.bad_item = "its batch failed with it: the model is not idempotent"
        else:
            fault = errors[hurt[0]]
            raise Fails(f"a bad item hurts its neighbours: {_said(fault)}", fault.traceback)
        self._about("running a good item after a bad one")
        after: Ran = runner.run(_work([alone]))
        if after.errors is not None:
            fault = after.errors[0][1]
            raise Fails(f"after a bad item a good one fails: {_said(fault)}", fault.traceback)

    def _close(self, model: LoadedModel) -> None:
        """Close the model, which may take as long as in a worker."""
        self._about("closing")
        raised: list[BaseException] = []
        closing = threading.Thread(target=_closed, args=(model, raised), daemon=True)
        closing.start()
        closing.join(LAST_WORDS)
        if closing.is_alive():
            self.report.notes.append(f"close() takes longer than {LAST_WORDS:.0f} s; a worker ends it then")
        self.report.notes += [f"close() raises {type(one).__name__}: {text_of(one)}" for one in raised]


def _closed(model: LoadedModel, raised: list[BaseException]) -> None:
    try:
        model.close()
    except BaseException as error:
        raised.append(error)


def _quick(runs: Sequence[float]) -> float:
    """Return the border of the quicker quarter: what else this host does is not the model's."""
    return max(sorted(runs)[len(runs) // 4], 1e-9)


def sizes_up_to(largest: int) -> list[int]:
    """Return the batch sizes to try: powers of two, and the largest."""
    sizes = [1]
    while sizes[-1] * 2 < largest:
        sizes.append(sizes[-1] * 2)
    return sizes if largest == 1 else [*sizes, largest]


class GpuMemory:
    """What the model holds on its GPU: torch knows it; else it is by how much the GPU has filled since."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._before = self._used()

    def held(self) -> int | None:
        """Return the bytes; None where nobody can tell."""
        torch = _torch_on_gpu()
        if torch is not None:
            return int(torch.cuda.memory_reserved())
        used = self._used()
        return None if used is None or self._before is None else max(0, used - self._before)

    def peak(self) -> int | None:
        """Return what it was at the most since :meth:`forget`, as far as that can be told."""
        torch = _torch_on_gpu()
        return self.held() if torch is None else int(torch.cuda.max_memory_allocated())

    def forget(self) -> None:
        """Let the peak begin anew."""
        torch = _torch_on_gpu()
        if torch is not None:
            torch.cuda.reset_peak_memory_stats()

    def _used(self) -> int | None:
        return next((one.used for one in self._gpus.read()), None)


def _torch_on_gpu() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _fails(what: str, error: BaseException) -> Fails:
    if isinstance(error, KeyboardInterrupt):
        raise error
    trace = "".join(traceback.format_exception(error))
    return Fails(f"{what}: {type(error).__name__}: {text_of(error)}", trace)


def _said(fault: Fault) -> str:
    kind = f"{fault.kind}: " if fault.kind else ""
    return f"{fault.code}: {kind}{fault.text}"


def _written(write: Callable[[Any], Any], output: Any) -> Any:
    try:
        return write(output)
    except TypeError:
        return write(plain(output))


def _tensors(output: Any, signature: Signature) -> Any:
    """Return an output as its signature names it; one tensor alone may come without its name."""
    if len(signature.outputs) == 1 and not isinstance(output, dict):
        output = {signature.outputs[0].name: output}
    if not isinstance(output, dict):
        return output
    declared = {one.name: one.datatype for one in signature.outputs}
    return {name: _tensor(one, declared.get(name, "")) for name, one in output.items()}


def _tensor(value: Any, datatype: str) -> Any:
    """Return a value as the gateway would take it for a tensor; as it is where it would not."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.numpy()
    if datatype == BYTES:
        return _in_bytes(value)
    if datatype not in DTYPES or type(value) not in (bool, int, float, list, tuple):
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind in "iu" and "INT" in datatype:
            return np.array(value, DTYPES[datatype])  # signed or not: it raises for what does not fit
        return array.astype(DTYPES[datatype], casting="same_kind")
    except (TypeError, ValueError, OverflowError):
        return value


def _in_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_bytes(one) for one in value]
    return value.encode("utf-8", "replace") if isinstance(value, str) else value


def _stranger(declared: Declared) -> Any:
    if declared.item is None:
        return STRANGER
    for one in STRANGERS:
        try:
            declared.item.convert(one)
        except BadInput:
            return one
    return STRANGER


def _work(encoded: Sequence[tuple[bytes, Sequence[Any]]]) -> Work:
    buffers = [own for _, own in encoded] if any(own for _, own in encoded) else None
    count = len(encoded)
    return Work([data for data, _ in encoded], buffers, list(range(count)), [math.inf] * count)


# --- the process ---------------------------------------------------------------------------------


def main(config: int, lifeline: int) -> None:
    """Be the process that ``zbatch check`` started with these descriptors."""
    die_with_parent(lifeline)
    # What the model prints must not stand in the report.
    os.dup2(2, 1)
    with os.fdopen(config, "rb") as stream:
        spec = msgspec.json.decode(stream.read(), type=Spec)
    Trial(spec, lambda report: write(report, Path(spec.report))).run()
    sys.stdout.flush()
    # What the model left running is nobody's to wait for.
    os._exit(0)


def write(report: Report, path: Path) -> None:
    """Put a report in the place of the one before, in one step."""
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.encode(report))
    unfinished.replace(path)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
