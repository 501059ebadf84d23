"""The error tree: codes, statuses, and the way of an error over the wire and back."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
import subprocess
import sys

import msgspec
import pytest

from zbatch import errors
from zbatch.errors import (
    BadInput,
    BatchError,
    BrokerUnreachable,
    Cancelled,
    ModelFailed,
    NoWorkers,
    Overloaded,
    PoisonItem,
    ZbatchError,
    from_fault,
    to_fault,
)
from zbatch.messages import Fault

TABLE = {
    "BadRequest": ("bad_request", 400, False),
    "BadInput": ("bad_input", 422, False),
    "Unauthorized": ("unauthorized", 401, False),
    "Forbidden": ("forbidden", 403, False),
    "UnknownTopic": ("unknown_topic", 404, False),
    "TooLarge": ("too_large", 413, False),
    "Overloaded": ("overloaded", 429, True),
    "Cancelled": ("cancelled", 499, False),
    "ModelFailed": ("model_failed", 500, False),
    "BadOutput": ("bad_output", 500, False),
    "PoisonItem": ("poison_item", 500, False),
    "ReaderTooSlow": ("reader_too_slow", 429, False),
    "WorkerLost": ("worker_lost", 503, True),
    "NoWorkers": ("no_workers", 503, True),
    "BrokerUnreachable": ("broker_unreachable", 503, True),
    "DeadlineExceeded": ("deadline_exceeded", 504, True),
    "ClientClosed": ("client_closed", 500, False),
    "ProtocolMismatch": ("protocol_mismatch", 500, False),
    "ConfigError": ("config_error", 500, False),
    "BatchError": ("batch_error", 207, False),
    "ZbatchError": ("error", 500, False),
}


class Unsayable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_every_error_has_its_word_its_status_and_whether_asking_again_may_help() -> None:
    found = {cls.__name__: (cls.code, cls.http_status, cls.retryable) for cls in errors.BY_CODE.values()}
    assert found == TABLE


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (BadInput, ValueError),
        (NoWorkers, TimeoutError),
        (BrokerUnreachable, TimeoutError),
        (Cancelled, concurrent.futures.CancelledError),
    ],
)
def test_errors_are_caught_as_what_callers_know(error: type[ZbatchError], builtin: type) -> None:
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    "error",
    [
        PoisonItem("alone"),
        Overloaded("full", retry_after=2.5),
        ModelFailed("no", kind="RuntimeError", traceback="Traceback ..."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_from_the_wire_as_what_it_was(error: ZbatchError) -> None:
    back = from_fault(to_fault(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_an_exception_of_the_models_becomes_its_failure_by_name_and_text() -> None:
    fault = to_fault(KeyError("weights"), "Traceback ...")
    assert fault == Fault("model_failed", "'weights'", 0, "KeyError", "Traceback ...")
    assert str(from_fault(fault)) == "KeyError: 'weights'"


def test_a_text_that_cannot_be_made_does_not_hide_the_failure() -> None:
    assert to_fault(Unsayable()).text == "its text could not be made: RuntimeError"


@pytest.mark.parametrize("second", [SystemExit, KeyboardInterrupt])
def test_a_text_that_would_end_the_process_does_not(second: type[BaseException]) -> None:
    class Deadly(Exception):
        def __str__(self) -> str:
            raise second

    assert to_fault(Deadly()).text == f"its text could not be made: {second.__name__}"
    assert to_fault(BadInput(Deadly())).text == f"its text could not be made: {second.__name__}"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad \ud800"),
        BadInput("bad \ud800"),
        ModelFailed("bad \ud800", kind="Bad\udfff", traceback="Traceback \ud800"),
        ValueError("\ud800" * 5_000),
        ModelFailed("bad", kind="\ud800" * 60, traceback="\ud800" * 40_000),
    ],
)
def test_half_a_surrogate_pair_is_spelled_out_so_that_every_error_can_be_sent(error: Exception) -> None:
    fault = to_fault(error, "" if isinstance(error, ModelFailed) else "Traceback \ud800")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fault), type=Fault) == fault
    assert fault.text.startswith(("bad", "\\ud800"))
    assert (len(fault.text) <= 4_096, len(fault.kind) <= 64, len(fault.traceback) <= 32_768) == (True,) * 3


def test_long_texts_and_tracebacks_are_cut_the_end_of_a_traceback_stays() -> None:
    fault = to_fault(ValueError("a" * 10_000), "b" * 50_000 + "end")
    assert (len(fault.text), len(fault.traceback)) == (4_096, 32_768)
    assert fault.traceback.endswith("end")
    assert len(to_fault(PoisonItem("a" * 10_000)).text) == 4_096


def test_a_word_of_a_newer_peer_is_an_error_that_names_it() -> None:
    error = from_fault(Fault("too_strange", "who knows"))
    assert (type(error), str(error)) == (ZbatchError, "too_strange: who knows")
    assert type(from_fault(Fault("batch_error", "never on the wire"))) is ZbatchError


def test_an_error_without_a_text_says_its_word() -> None:
    assert str(PoisonItem()) == "poison_item"
    assert str(ModelFailed("no")) == "no"


def test_a_batch_error_says_how_many_failed_and_the_first_of_them() -> None:
    error = BatchError({1: PoisonItem("alone"), 2: PoisonItem("too")}, ["a", None, None])
    assert str(error) == "2 of 3 items failed; item 1: PoisonItem: alone"
    assert error.results == ["a", None, None]


@pytest.mark.parametrize(
    "error",
    [
        BatchError({0: PoisonItem("alone")}, [None]),
        Overloaded("full", retry_after=2.5),
        ModelFailed("no", kind="RuntimeError", traceback="Traceback ..."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_and_copying(error: ZbatchError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other)) == (type(error), str(error))
        assert vars(other).keys() == vars(error).keys()


def test_the_tree_is_found_on_the_package_and_loaded_when_it_is_asked_for() -> None:
    code = "import sys, zbatch; print('zbatch.errors' in sys.modules, zbatch.errors.NoWorkers.http_status)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False 503\n"


def test_http_is_told_in_whole_seconds_when_to_come_back() -> None:
    assert Overloaded(retry_after=2.1).http_headers == {"Retry-After": "3"}
    assert Overloaded(retry_after=0.02).http_headers == {"Retry-After": "1"}
    assert NoWorkers().http_headers == {}
