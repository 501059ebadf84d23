"""The Open Inference Protocol, version 2, over HTTP: what its bodies say, and what is answered to each call.

Pure functions over bytes, headers and what a model declares (``signature.py``).  Rows of the first dimension
are items, so requests of many clients share batches.  Beside the protocol these extensions of Triton's are
spoken: binary tensors, priority and timeout, the repository's index, statistics, configuration.  How a tensor
is read and written, ``tensors.py`` knows; which path is which call, ``routes.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from zbatch.errors import (
    BadInput,
    BadOutput,
    BadRequest,
    BatchError,
    ConfigError,
    TooLarge,
    UnknownTopic,
    ZbatchError,
)
from zbatch.gateway import tensors
from zbatch.gateway.bodies import MOST_ITEMS
from zbatch.signature import ANY, BYTES, ELEMENTS, Signature, Tensor

JSON = "application/json"
RAW = "application/octet-stream"

HEADER_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of a body are JSON; binary tensors come behind them."""

PLATFORM = "zbatch_python"

EXTENSIONS = (
    "binary_tensor_data",
    "schedule_policy",
    "model_repository",
    "model_configuration",
    "statistics",
)
"""What is spoken beside the protocol, by Triton's names.  Of model_repository it is the index."""

NAMED = 8
"""Tensors that an error names at most."""

_HIGHEST = 1_000
"""Triton's priority 1, the highest, is this one of ours; its 2 is one less."""


# --- an inference request -------------------------------------------------------------------------


class Wanted(NamedTuple):
    """An output that a request asks for."""

    tensor: Tensor
    binary: bool


class Ask(NamedTuple):
    """An inference request."""

    items: list[dict[str, Any]]
    outputs: list[Wanted]
    id: str | None = None
    priority: int = 0
    timeout: float | None = None
    """Seconds; None: it names none."""


Size = Annotated[int, Meta(ge=0, le=1 << 62)]
Length = Annotated[int, Meta(ge=0, le=ELEMENTS)]
Refused = Raw | UnsetType
"""What is not to be there."""


class _InputParameters(Struct, frozen=True):
    binary_data_size: Size | UnsetType = UNSET
    shared_memory_region: Refused = UNSET


class _Input(Struct, frozen=True):
    name: str
    shape: Annotated[list[Length], Meta(max_length=64)]
    datatype: str
    parameters: _InputParameters | None = None
    data: Raw | UnsetType = UNSET


class _OutputParameters(Struct, frozen=True):
    binary_data: bool | UnsetType = UNSET
    classification: Refused = UNSET
    shared_memory_region: Refused = UNSET


class _Output(Struct, frozen=True):
    name: str
    parameters: _OutputParameters | None = None


class _Parameters(Struct, frozen=True):
    binary_data_output: bool = False
    priority: Size = 0
    timeout: Size = 0
    """Microseconds; 0: none."""
    sequence_id: Size | str = 0


class _Request(Struct, frozen=True):
    inputs: list[_Input]
    id: str | None = None
    parameters: _Parameters | None = None
    outputs: list[_Output] | None = None


_decode = msgspec.json.Decoder(_Request).decode

_NO_INPUT_PARAMETERS = _InputParameters()
_NO_OUTPUT_PARAMETERS = _OutputParameters()
_NO_PARAMETERS = _Parameters()


def read(signature: Signature, body: bytes, header_length: str | None) -> Ask:
    """Return what a body asks for.

    ``header_length`` is the header of that name, if there is one.  Raises :class:`BadRequest` for what is
    malformed, :class:`BadInput` for what does not fit the signature, :class:`TooLarge` for too many rows.
    """
    view = memoryview(body)
    end = len(body)
    if header_length is not None:
        end = _header_of(header_length, end)
        if end == 0:
            return _raw(signature, view)
    try:
        request = _decode(view[:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(tensors.sentence(error, "the request")) from None
    parameters = request.parameters or _NO_PARAMETERS
    if parameters.sequence_id:
        raise BadRequest("parameters.sequence_id: no model here has sequences; send none")
    outputs = _outputs(signature, request.outputs, parameters.binary_data_output)
    items = _items(signature, _columns(signature, request.inputs, view[end:]))
    return Ask(items, outputs, request.id, priority_of(parameters.priority), _seconds(parameters.timeout))


def priority_of(given: int) -> int:
    """Return our priority, of which higher goes first, for Triton's: 0 is the default, 1 the highest."""
    return max(1, _HIGHEST - given) if given else 0


def _seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if microseconds else None


def _header_of(text: str, size: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= size):
        raise BadRequest(f"{HEADER_LENGTH} is {text[:40]!r}, wanted a number up to the body's {size} bytes")
    return int(text)


def _raw(signature: Signature, body: memoryview) -> Ask:
    """Return what a body asks for that is nothing but the only input's bytes, of one item."""
    if len(signature.inputs) != 1:
        raise BadRequest(
            f"{HEADER_LENGTH} is 0, so the body is one tensor; the model takes {_named(signature.inputs)}"
        )
    tensor = signature.inputs[0]
    column = tensors.read_raw(tensor, body, f"input {tensor.name!r}")
    return Ask(_items(signature, {tensor.name: column}), [Wanted(one, True) for one in signature.outputs])


def _columns(signature: Signature, inputs: Sequence[_Input], rest: memoryview) -> dict[str, Any]:
    """Return the tensors by name; ``rest`` holds the bytes of those that are binary."""
    declared = {one.name: one for one in signature.inputs}
    found: dict[str, Any] = {}
    start = rows = 0
    for place, given in enumerate(inputs):
        path = f"inputs[{place}]"
        tensor = declared.get(given.name)
        if tensor is None:
            raise BadInput(f"{path} is {given.name!r:.80}, wanted {_named(signature.inputs)}")
        path = f"{path} {given.name!r}"
        if given.name in found:
            raise BadRequest(f"{path} comes twice")
        if given.datatype != tensor.datatype:
            raise BadInput(f"{path} has datatype {given.datatype!r:.40}, wanted {tensor.datatype}")
        tensors.check_shape(given.shape, tensor, path)
        rows = rows or given.shape[0]
        if given.shape[0] != rows:
            raise BadInput(f"{path} has {given.shape[0]} rows, {inputs[0].name!r:.80} has {rows}")
        if rows > MOST_ITEMS:
            raise TooLarge(f"{path} has {rows} rows, each an item, wanted at most {MOST_ITEMS}")
        found[given.name], size = _column(given, tensor, rest[start:], path)
        start += size
    if len(found) < len(declared):
        missing = [one for one in signature.inputs if one.name not in found]
        raise BadInput(f"inputs lacks {_named(missing)}")
    if start != len(rest):
        raise BadRequest(f"{len(rest)} bytes are behind the JSON, of which binary_data_size names {start}")
    return found


def _column(given: _Input, tensor: Tensor, rest: memoryview, path: str) -> tuple[Any, int]:
    """Return a tensor, and how many bytes of the rest it took."""
    parameters = given.parameters or _NO_INPUT_PARAMETERS
    if parameters.shared_memory_region is not UNSET:
        raise BadRequest(f"{path}: memory is not shared over HTTP here; send the data")
    size = parameters.binary_data_size
    if size is UNSET:
        if given.data is UNSET:
            raise BadRequest(f"{path} has neither data nor binary_data_size")
        return tensors.read_json(tensor, given.shape, given.data, path), 0
    if given.data is not UNSET:
        raise BadRequest(f"{path} has both data and binary_data_size, wanted one of them")
    if size > len(rest):
        raise BadRequest(
            f"{path} has binary_data_size {size}, but {len(rest)} bytes are left behind the JSON, "
            f"whose length {HEADER_LENGTH} says"
        )
    return tensors.read_binary(tensor, given.shape, rest[:size], path), size


def _items(signature: Signature, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    if len(columns) == 1:
        ((name, column),) = columns.items()
        return [{name: row} for row in column]
    names = [one.name for one in signature.inputs]
    return [
        dict(zip(names, rows, strict=True)) for rows in zip(*(columns[name] for name in names), strict=True)
    ]


def _outputs(signature: Signature, asked: Sequence[_Output] | None, binary: bool) -> list[Wanted]:
    if not asked:
        wanted = [Wanted(one, binary) for one in signature.outputs]
    else:
        declared = {one.name: one for one in signature.outputs}
        wanted = []
        for place, one in enumerate(asked):
            tensor = declared.pop(one.name, None)
            if tensor is None:
                raise BadRequest(
                    f"outputs[{place}] is {one.name!r:.80}, wanted {_named(signature.outputs)}, each once"
                )
            parameters = one.parameters or _NO_OUTPUT_PARAMETERS
            if parameters.classification is not UNSET:
                raise BadRequest(f"outputs[{place}]: classification is not done here; ask for the scores")
            if parameters.shared_memory_region is not UNSET:
                raise BadRequest(f"outputs[{place}]: memory is not shared over HTTP here")
            own = binary if parameters.binary_data is UNSET else parameters.binary_data
            wanted.append(Wanted(tensor, own))
    for tensor, is_binary in wanted:
        if tensor.datatype == tensors.FP16 and not is_binary:
            raise BadRequest(
                f"output {tensor.name!r} is FP16, which has no form in JSON; ask for it with binary_data true"
            )
    return wanted


# --- its answer -----------------------------------------------------------------------------------


class Written(NamedTuple):
    """What is answered with status 200."""

    headers: list[tuple[str, str]]
    body: bytes


def write(ask: Ask, signature: Signature, outputs: Sequence[Any], name: str, version: str) -> Written:
    """Return the answer that is made of the items' outputs.

    Each is a dict of arrays by output name; where one output is declared, it may be that one itself.  Raises
    :class:`BadOutput`, which names what does not fit.
    """
    _check_names(signature, outputs)
    told: list[dict[str, Any]] = []
    parts: list[Any] = []
    for tensor, binary in ask.outputs:
        column = tensors.column(tensor, [_value(one, tensor.name) for one in outputs])
        shown: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": column.shape}
        if binary:
            buffers, size = tensors.write_binary(column)
            shown["parameters"] = {"binary_data_size": size}
            parts += buffers
        else:
            shown["data"] = tensors.write_json(column)
        told.append(shown)
    response: dict[str, Any] = {"model_name": name}
    if version:
        response["model_version"] = version
    if ask.id is not None:
        response["id"] = ask.id
    response["outputs"] = told
    header = msgspec.json.encode(response)
    if not parts:
        return Written([("content-type", JSON)], header)
    headers = [("content-type", RAW), (HEADER_LENGTH, str(len(header)))]
    return Written(headers, b"".join([header, *parts]))


def _check_names(signature: Signature, outputs: Sequence[Any]) -> None:
    names = {one.name for one in signature.outputs}
    for place, output in enumerate(outputs):
        if not isinstance(output, dict):
            if len(names) > 1:
                raise BadOutput(
                    f"the output of item {place} is of type {type(output).__name__}, "
                    f"wanted a dict with {_named(signature.outputs)}"
                )
        elif output.keys() != names:
            wrong = [f"{name!r:.80}" for name in output if name not in names]
            lacking = [repr(name) for name in names if name not in output]
            fault = f"has {wrong[0]}" if wrong else f"lacks {min(lacking)}"
            raise BadOutput(f"the output of item {place} {fault}, wanted {_named(signature.outputs)}")


def _value(output: Any, name: str) -> Any:
    return output[name] if isinstance(output, dict) else output


def _named(tensors_: Sequence[Tensor]) -> str:
    names = ", ".join(repr(one.name) for one in tensors_[:NAMED])
    more = len(tensors_) - NAMED
    return f"{names} and {more} more" if more > 0 else names


# --- what else is asked ---------------------------------------------------------------------------


class Model(NamedTuple):
    """A topic as the protocol sees it."""

    name: str
    versions: tuple[str, ...]
    signature: Signature | None
    ready: bool

    @property
    def version(self) -> str:
        """The version that answers, where there is but one."""
        return self.versions[0] if len(self.versions) == 1 else ""


def model_of(name: str, topic: Mapping[str, Any]) -> Model:
    """Return a topic of a broker's snapshot; of several signatures, while versions change, the oldest."""
    signature: Signature | None = None
    versions: list[str] = []
    for told in topic.get("models", ()):
        if told["version"] and told["version"] not in versions:
            versions.append(told["version"])
        if signature is None and told["signature"] is not None:
            with contextlib.suppress(
                ConfigError
            ):  # a worker of another version may mean something else by it
                signature = Signature.from_json(msgspec.json.encode(told["signature"]))
    return Model(name, tuple(versions), signature, bool(topic["workers"]))


def require_version(model: Model, version: str) -> None:
    """Raise :class:`UnknownTopic` unless a request for this version can be answered by it alone."""
    served = ", ".join(model.versions[:NAMED]) or "none"
    if version not in model.versions:
        raise UnknownTopic(f"model {model.name!r:.100} has no version {version!r:.80}; it has {served}")
    if len(model.versions) > 1:
        raise BadRequest(f"model {model.name!r:.100} has versions {served} now, whoever is free; name none")


def require_signature(model: Model) -> Signature:
    """Return what the model declares; raises :class:`BadRequest` where it declares nothing."""
    if model.signature is None:
        raise BadRequest(
            f"model {model.name!r:.100} declares no signature, by which tensors become items; "
            f"ask POST /predict/{model.name:.100}, or give the model its class attribute signature"
        )
    return model.signature


def server_metadata(version: str) -> bytes:
    """Return the body that says who this is."""
    return msgspec.json.encode({"name": "zbatch", "version": version, "extensions": EXTENSIONS})


def model_ready(model: Model) -> bytes:
    """Return the body that says whether a model is ready."""
    return msgspec.json.encode({"name": model.name, "ready": model.ready})


def model_metadata(model: Model) -> bytes:
    """Return the body that says what a model takes and gives; shapes begin with the number of rows."""
    signature = model.signature
    return msgspec.json.encode(
        {
            "name": model.name,
            "versions": model.versions,
            "platform": PLATFORM,
            "inputs": [_metadata(one) for one in signature.inputs] if signature else [],
            "outputs": [_metadata(one) for one in signature.outputs] if signature else [],
        }
    )


def model_config(model: Model) -> bytes:
    """Return the body that Triton's model_configuration extension has; its dims are those of one item."""
    signature = model.signature
    return msgspec.json.encode(
        {
            "name": model.name,
            "platform": PLATFORM,
            "backend": "zbatch",
            "max_batch_size": MOST_ITEMS,
            "input": [_config(one) for one in signature.inputs] if signature else [],
            "output": [_config(one) for one in signature.outputs] if signature else [],
        }
    )


def _metadata(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": (ANY, *tensor.shape)}


def _config(tensor: Tensor) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == BYTES else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": tensor.shape}


class _Index(Struct, frozen=True):
    ready: bool = False


def repository_index(models: Sequence[Model], body: bytes) -> bytes:
    """Return the body that lists the models; with ``ready`` in what was asked only those that are."""
    asked = _Index()
    if body.strip():
        try:
            asked = msgspec.json.decode(body, type=_Index)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(tensors.sentence(error, "the request")) from None
    return msgspec.json.encode(
        [
            {"name": one.name, "version": version, **_state(one)}
            for one in models
            if one.ready or not asked.ready
            for version in one.versions or ("",)
        ]
    )


def _state(model: Model) -> dict[str, str]:
    if model.ready:
        return {"state": "READY", "reason": ""}
    return {"state": "UNAVAILABLE", "reason": "it has no workers now"}


def statistics(models: Sequence[tuple[Model, Mapping[str, Any]]]) -> bytes:
    """Return the body of Triton's statistics extension, from topics as a broker's snapshot has them.

    A broker counts for all versions of a topic together, and times what waited and ran as one; what it does
    not count is zero.
    """
    return msgspec.json.encode({"model_stats": [_statistics(*one) for one in models]})


def _statistics(model: Model, topic: Mapping[str, Any]) -> dict[str, Any]:
    answered, batches = topic.get("answered", 0), topic.get("batches", 0)
    failed = sum(topic.get("errors", {}).values())
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": 0,
        "inference_count": answered,
        "execution_count": batches,
        "inference_stats": {
            "success": _duration(answered, topic.get("latency_ms")),
            "fail": _duration(failed, None),
            "queue": _duration(0, None),
            "compute_input": _duration(0, None),
            "compute_infer": _duration(batches, topic.get("run_ms")),
            "compute_output": _duration(0, None),
        },
        "batch_stats": [],
    }


def _duration(count: int, times: Mapping[str, Any] | None) -> dict[str, int]:
    mean = (times or {}).get("mean") or 0.0
    return {"count": count, "ns": round(count * mean * 1e6)}


def refuse_loading(call: str, name: str) -> BadRequest:
    """Return what is said to who wants a model loaded or unloaded here."""
    how = f"zbatch worker MODEL --topic {name:.100}" if call == "load" else f"zbatch drain topic {name:.100}"
    return BadRequest(f"this server does not {call} models: workers bring them ({how})")


def known_to_clients(error: ZbatchError) -> ZbatchError:
    """Return an error whose status this protocol's clients know.

    They know 400 for an input that does not fit, and one error for a whole request.
    """
    if isinstance(error, BatchError):
        error = error.errors[min(error.errors)]
    return BadRequest(str(error)) if isinstance(error, BadInput) else error
