"""What the user writes, and how a name like ``pkg.mod:Name`` or ``path/file.py:Name`` becomes a model.

A model is a function ``predict(batch)``, an object or a class with one, or a :class:`ManagedModel`.  Running
it on a batch, and what its failures mean, is ``runner.py``'s business.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from zbatch.errors import BadOutput, ConfigError
from zbatch.messages import Facts

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)

MISSING: Any = object()
SIGNATURE_BYTES = 16_384


@dataclass(frozen=True)
class Context:
    """Where a model finds itself."""

    device: str = "cpu"
    """``cuda:0`` where the process has a GPU (it sees only its own), else ``cpu``."""
    index: int = 0
    """Which model process of its worker this is, from 0."""
    topic: str = "default"


class Model(Protocol[In, Out]):
    """What a worker runs: one output per input, in the same order."""

    def predict(self, batch: Sequence[In]) -> Sequence[Out]:
        """Return one output for each item of the batch."""


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
        self.example: Any = getattr(target, "example", MISSING)
        self.idempotent = bool(getattr(target, "idempotent", True))
        self._target = target
        self._name = name

    def warm_up(self) -> None:
        """Run the example, if there is one, as a batch of one.

        Raises what the model raises, and :class:`BadOutput` where it returns other than one output.
        """
        if self.example is MISSING:
            return
        outputs = self.predict([self.example])
        count = len(outputs) if hasattr(outputs, "__len__") else None
        if count != 1:
            found = "no sequence" if count is None else f"{count} outputs"
            raise BadOutput(
                f"warm-up: predict returned {found} for the one example; wanted one output an item"
            )

    def facts(self) -> Facts:
        """Return what the worker tells about this model."""
        signature = getattr(self._target, "signature", None)
        encoded = b"" if signature is None else msgspec.json.encode(signature)
        if len(encoded) > SIGNATURE_BYTES:
            raise ConfigError(
                f"the signature of {self._name} has {len(encoded)} bytes, wanted at most {SIGNATURE_BYTES}"
            )
        return Facts(self._name[:256], str(getattr(self._target, "version", ""))[:64], encoded)

    def close(self) -> None:
        """Let the model release what it holds."""
        close = getattr(self._target, "close", None)
        if callable(close) and not inspect.isclass(self._target):
            close()


def load(name: str, args: Mapping[str, Any], context: Context) -> LoadedModel:
    """Return the model of a name, set up in this thread.

    Raises :class:`ConfigError` with a sentence for a wrong name or wrong arguments; what the model's own
    code raises passes through.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise ConfigError(f"model is {name!r}, wanted package.module:Name or path/file.py:Name")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{place} has no {attribute!r}{_instead(part, _public(found))}")
        found = getattr(found, part)
    return wrap(found, args, context, name=name)


def wrap(model: Any, args: Mapping[str, Any], context: Context, *, name: str | None = None) -> LoadedModel:
    """Return a model that is already in hand as a function, a class or an object, set up in this thread."""
    shown = name or str(getattr(model, "__qualname__", type(model).__qualname__))
    if inspect.isclass(model):
        if not callable(getattr(model, "predict", None)):
            raise ConfigError(f"{shown} has no predict(batch) method{_instead('predict', _public(model))}")
        if issubclass(model, ManagedModel):
            managed = model()
            _call(managed.init_model, args, f"{shown}.init_model")
            model = managed
        else:
            model = _call(model, args, shown)
    elif args:
        raise ConfigError(f"{shown} is no class, so it takes no arguments; got {', '.join(args)}")
    predict = getattr(model, "predict", None)
    if not callable(predict):
        if not callable(model) or isinstance(model, ModuleType):
            raise ConfigError(
                f"{shown} is a {type(model).__name__}; wanted a function predict(batch) or a class with one"
            )
        predict = model
    setup = getattr(model, "setup", None)
    if callable(setup):
        setup(context)
    return LoadedModel(model, predict, shown)


def _call(target: Callable[..., Any], args: Mapping[str, Any], shown: str) -> Any:
    try:
        inspect.signature(target).bind(**args)
    except TypeError as error:
        raise ConfigError(
            f"the arguments of {shown} do not fit: {error}; give them with --arg key=value"
        ) from None
    except ValueError:
        pass
    return target(**args)


def _load_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        folder = path.parent
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}, so no model {place}")
        raise ConfigError(
            f"there is no file {path}{_instead(path.name, [one.name for one in folder.glob('*.py')])}"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
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
            f"there is no module {error.name!r} (for model {place}); is it installed, or below {Path.cwd()}?"
        ) from None


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


def _instead(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 3, 0.6)
    if near:
        return f"; did you mean {', '.join(near)}?"
    return f"; there is {', '.join(sorted(known)[:8])}" if known else ""
