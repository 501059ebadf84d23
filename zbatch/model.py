"""What the user writes, and how a name like ``pkg.mod:Name`` or ``path/file.py:Name`` becomes a model.

A model is a function ``predict(batch)``, an object or a class with one, or a :class:`ManagedModel`.  What the
person who starts a worker got wrong (a path, a name, an argument) becomes a sentence; what the model's own
code raises passes through with its traceback.  Running it on batches, and what its failures mean, is
``runner.py``'s business.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeVar

from zbatch.declared import declared_by
from zbatch.errors import BadInput, BadOutput, ConfigError, encodable
from zbatch.messages import Facts
from zbatch.schema import SCHEMA_BYTES, schema_of
from zbatch.signature import Signature
from zbatch.steps import is_generator, whole_of

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)

MISSING: Any = object()
"""No example was given; None is an item like others."""

NAME_LENGTH, VERSION_LENGTH, SIGNATURE_BYTES = 256, 64, 16_384
"""What fits into :class:`~zbatch.messages.Facts`."""

SHOWN = 12
"""Names that an error lists: enough to find one's own, too few to fill the screen."""

WANTED = "package.module:Name or path/file.py:Name"


@dataclass(frozen=True)
class Context:
    """Where a model finds itself."""

    device: str = "cpu"
    """``cuda:0`` where the process has a GPU (it sees only its own), else ``cpu``."""
    index: int = 0
    """Which model process of its worker this is, from 0."""
    topic: str = "default"
    gpu: str = ""
    """How this GPU is called outside of the process: an index or a UUID; empty on the CPU."""


class Model(Protocol[In, Out]):
    """What a worker runs: one output per input, in the same order.

    ``predict`` may be a generator, sync or async, whose items' results come part by part.  At each step it
    yields a list with an entry for each item of the batch, or a dict from places to entries: the next part,
    ``zbatch.NOTHING``, ``zbatch.END`` when that item's result is complete, or an exception that fails that
    item.  When it returns, all that have not ended do.  Each part goes to whoever reads it with ``stream``;
    who asked with ``predict`` gets the list of the parts as the output.  When nobody waits for anything any
    more, the generator is closed; ``zbatch.current_batch().wanted(place)`` says it of one item.

    Beside ``predict`` it may have ``__init__(**args)``, ``setup(context)``, ``close()`` and the attributes
    ``example`` (an item; it is run before the model counts as ready), ``idempotent`` (False: no batch is
    ever run again), ``version`` and ``signature`` (the tensors of an item and of its output, as
    ``signature.py`` has them).  Its annotations may declare what items and outputs are (``declared.py``).
    """

    def predict(self, batch: Sequence[In]) -> Sequence[Out]:
        """Return one output for each item of the batch.

        An exception in an output's place is that item's error.  Arrays of the batch are read-only, since it
        may run again from the same memory.  Arrays that were returned must not be written to afterwards:
        large ones are sent from where they lie.
        """


class ManagedModel:
    """A model that is loaded in its worker process, in the way of service_streamer.

    Override :meth:`init_model` and :meth:`predict`.
    """

    model: Any

    def __init__(self, gpu_id: int | str | None = None) -> None:
        self.model = None
        self.gpu_id = gpu_id
        self.set_gpu_id(gpu_id)

    @staticmethod
    def set_gpu_id(gpu_id: int | str | None = None) -> None:
        """Let this process see one GPU; None leaves what it sees as it is."""
        if gpu_id is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu_id)

    def init_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model."""
        raise NotImplementedError(f"{type(self).__name__} must define init_model()")

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Return one output for each item of the batch."""
        raise NotImplementedError(f"{type(self).__name__} must define predict(batch)")


class LoadedModel:
    """A model that is ready to run."""

    MISSING: ClassVar[Any] = MISSING

    def __init__(self, target: Any, predict: Callable[[Any], Any], name: str) -> None:
        self.predict = predict
        self.declared = declared_by(predict)
        self.example: Any = getattr(target, "example", MISSING)
        self.idempotent = bool(getattr(target, "idempotent", True))
        self.signature = _signature_of(target, name)
        self._target = target
        self._name = name

    def warm_up(self) -> None:
        """Run the example, else zeros of the signature's shapes, if there is either, as a batch of one.

        Raises what the model raises or returns in the output's place, :class:`BadOutput` where it returns
        other than one output, and :class:`ConfigError` for an item that is not of the type that ``predict``
        declares.
        """
        item, origin = self.example, "the example"
        if item is MISSING:
            if self.signature is None:
                return
            item, origin = self.signature.zeros(), "zeros of the signature"
        try:
            if self.declared.item is not None:
                item = self.declared.item.convert(item)
        except BadInput as error:
            raise ConfigError(f"{origin} of {self._name}: not what its predict declares: {error}") from None
        try:
            results = self.predict([item])
            if is_generator(results):
                results = whole_of(results, 1)
            (output,) = outputs_of(results, 1)
        except BadOutput as error:
            raise BadOutput(f"warm-up with {origin} of {self._name}: {error}") from None
        if isinstance(output, BaseException):
            raise output

    def facts(self) -> Facts:
        """Return what the worker tells about this model.

        Raises :class:`ConfigError` for a signature that cannot be told.
        """
        encoded = b"" if self.signature is None else self.signature.json()
        if len(encoded) > SIGNATURE_BYTES:
            raise ConfigError(
                f"the signature of {self._name} has {len(encoded)} bytes, wanted at most {SIGNATURE_BYTES}"
            )
        name, version = encodable(self._name), encodable(str(getattr(self._target, "version", "")))
        schema = self.schema if len(self.schema) <= SCHEMA_BYTES else b""
        return Facts(name[:NAME_LENGTH], version[:VERSION_LENGTH], encoded, schema=schema)

    @functools.cached_property
    def schema(self) -> bytes:
        """What the declared types are in JSON, whatever its size."""
        return schema_of(self.declared)

    def close(self) -> None:
        """Let the model release what it holds."""
        close = getattr(self._target, "close", None)
        if callable(close) and not inspect.isclass(self._target):
            close()


def _signature_of(target: Any, name: str) -> Signature | None:
    declared = getattr(target, "signature", None)
    if declared is None:
        return None
    try:
        return Signature.of(declared)
    except ConfigError as error:
        raise ConfigError(f"the signature of {name} is malformed: {error}") from None


def outputs_of(results: Any, count: int) -> list[Any]:
    """Return what ``predict`` returned for ``count`` items as a list, one output for each.

    Rows of an array or a tensor are outputs.  Raises :class:`BadOutput` for another number, and for what has
    no order or is more likely one output than many.
    """
    if type(results) is list and len(results) == count:
        return results
    if results is None or _is_no_sequence(results):
        raise BadOutput(
            f"predict returned {_named(results)} for a batch of {count}; "
            "wanted a sequence, such as a list, with one output for each item"
        )
    found = len(results)
    if found == count:
        outputs = list(results)
        found = len(outputs)
        if found == count:
            return outputs
    raise BadOutput(f"predict returned {found} outputs for a batch of {count}; wanted one for each item")


def _is_no_sequence(results: Any) -> bool:
    if isinstance(results, str | bytes | bytearray | memoryview | Mapping | Set):
        return True
    if getattr(results, "shape", None) == ():
        return True
    # Tables (pandas) look like sequences but are walked by column; a single column is walked by row.
    if hasattr(results, "keys") and getattr(results, "ndim", 0) != 1:
        return True
    return not hasattr(results, "__len__")


def _named(results: Any) -> str:
    if results is None:
        return "None (is a return missing?)"
    if getattr(results, "shape", None) == ():
        return f"{_some(results)} without rows"
    return _some(results)


def _some(value: object) -> str:
    kind = type(value).__name__
    if value is None:
        return "None"
    return f"an {kind}" if kind[0] in "aeioAEIO" else f"a {kind}"


def check_name(name: str) -> None:
    """Raise what :func:`load` would, as far as that can be told without running the model's code."""
    place, _ = _parted(name)
    if place.endswith(".py"):
        _file(place)


def load(name: str, args: Mapping[str, Any], context: Context) -> LoadedModel:
    """Return the model of a name, set up in this thread.

    Raises :class:`ConfigError` with a sentence for a wrong name or wrong arguments; what the model's own
    code raises passes through.
    """
    place, attribute = _parted(name)
    found: Any = _load_file(place) if place.endswith(".py") else _load_module(place)
    shown = place
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{shown} has no {part!r}{_instead(part, _offered(found))}")
        found = getattr(found, part)
        shown = f"{place}:{part}" if shown == place else f"{shown}.{part}"
    return wrap(found, args, context, name=name)


def wrap(model: Any, args: Mapping[str, Any], context: Context, *, name: str | None = None) -> LoadedModel:
    """Return a model that is already in hand as a function, a class or an object, set up in this thread."""
    shown = name or str(getattr(model, "__qualname__", type(model).__qualname__))
    if inspect.isclass(model):
        model = _made(model, args, context, shown)
    elif args:
        raise ConfigError(f"{shown} is no class, so it takes no arguments; got {', '.join(args)}")
    predict = _predict_of(model, shown)
    setup = getattr(model, "setup", None)
    if callable(setup):
        setup(context)
    return LoadedModel(model, predict, shown)


def _parted(name: str) -> tuple[str, str]:
    if name.lstrip().startswith("lambda"):
        raise ConfigError(
            f"model is {name!r}: a lambda has no name that other processes could load; "
            f"put a function predict(batch) into a file and name it, as {WANTED}"
        )
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        hint = f"; did you forget :Name after {name}?" if name.endswith(".py") else ""
        raise ConfigError(f"model is {name!r}, wanted {WANTED}{hint}")
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        hint = f"; did you mean {place}.py:{attribute}?" if Path(f"{place}.py").is_file() else ""
        if ":" in place:
            hint = f"; did you mean {place}?"
        raise ConfigError(f"model is {name!r}, wanted {WANTED}{hint}")
    return place, attribute


def _made(model: type[Any], args: Mapping[str, Any], context: Context, shown: str) -> Any:
    if not callable(getattr(model, "predict", None)):
        raise ConfigError(
            f"{shown} has no method predict(self, batch){_instead('predict', _offered(model), 'it has')}"
        )
    if not issubclass(model, ManagedModel):
        return _call(model, args, shown)
    for required in ("init_model", "predict"):
        if getattr(model, required) is getattr(ManagedModel, required):
            raise ConfigError(f"{shown} is a ManagedModel that does not define {required}()")
    managed = _managed(model, context)
    _call(managed.init_model, args, f"{shown}.init_model")
    return managed


def _managed(model: type[ManagedModel], context: Context) -> ManagedModel:
    gpu: int | str | None = context.gpu or None
    if context.gpu.isdecimal():
        gpu = int(context.gpu)
    try:
        inspect.signature(model).bind(gpu)
    except TypeError:
        return model()
    return model(gpu)


def _predict_of(model: Any, shown: str) -> Callable[[Any], Any]:
    predict = getattr(model, "predict", None)
    if not callable(predict):
        if not callable(model) or isinstance(model, ModuleType):
            kind = type(model).__name__
            raise ConfigError(
                f"{'the model' if shown == kind else shown} is {_some(model)} without predict; "
                "wanted a function predict(batch), or a class or an object with one"
            )
        predict = model
    if inspect.iscoroutinefunction(predict):
        raise ConfigError(f"predict of {shown} is async; wanted a plain def that returns the outputs")
    try:
        inspect.signature(predict).bind([])
    except TypeError as error:
        raise ConfigError(f"predict of {shown} must take one argument, the batch: {error}") from None
    except ValueError:
        pass  # written in C: it cannot be asked
    found: Callable[[Any], Any] = predict
    return found


def _call(target: Callable[..., Any], args: Mapping[str, Any], shown: str) -> Any:
    try:
        signature = inspect.signature(target)
    except ValueError:
        return target(**args)  # written in C: it cannot be asked
    try:
        signature.bind(**args)
    except TypeError as error:
        takes = [one.name for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        raise ConfigError(
            f"the arguments of {shown} do not fit: {error}; it takes {', '.join(takes) or 'none'}, "
            f"given with --arg key=value; got {', '.join(args) or 'none'}"
        ) from None
    return target(**args)


def _file(place: str) -> Path:
    path = Path(place).resolve()
    if not path.is_file():
        folder = path.parent
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}, so no model {place}")
        raise ConfigError(
            f"there is no file {path}{_instead(path.name, [one.name for one in folder.glob('*.py')])}"
        )
    return path


def _load_file(place: str) -> ModuleType:
    path = _file(place)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # A file called queue.py must not take the place of the module that others mean by this name.
    name = path.stem
    if known is not None or name in sys.stdlib_module_names:
        name = f"zbatch model {name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(place: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # Only the module that was asked for is the caller's mistake; a missing import inside it is its own.
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise
        raise ConfigError(
            f"there is no module {error.name!r}{_instead(error.name, _modules_beside(error.name), None)}; "
            f"it must be installed or lie below {Path.cwd()}, and a file is named by path/file.py:Name"
        ) from None


def _modules_beside(name: str) -> list[str]:
    package, _, _ = name.rpartition(".")
    parent = sys.modules.get(package) if package else None
    paths = [str(Path.cwd())] if parent is None else list(getattr(parent, "__path__", []))
    prefix = f"{package}." if package else ""
    return [prefix + one.name for one in pkgutil.iter_modules(paths)]


def _offered(found: Any) -> list[str]:
    """Return the public names of something; of a module, those that were made there, if there are any."""
    names = [name for name in dir(found) if not name.startswith("_")]
    if not isinstance(found, ModuleType):
        return names
    own = [name for name in names if getattr(getattr(found, name), "__module__", "") == found.__name__]
    return own or names


def _instead(word: str, known: Iterable[str], listed: str | None = "there is") -> str:
    """Return the end of a sentence that says what may have been meant."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, 3, 0.6)
    if near:
        return f"; did you mean {', '.join(near)}?"
    if listed is None or not names:
        return ""
    more = ", ..." if len(names) > SHOWN else ""
    return f"; {listed} {', '.join(names[:SHOWN])}{more}"
