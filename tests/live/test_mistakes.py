"""What a newcomer gets wrong, and the sentence that each mistake gives: as docs/operations.md has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zbatch as package
from tests.live.shell import ROOT, Zbatch, zbatch
from zbatch import BadOutput, BrokerUnreachable, NoWorkers, ZClient

pytestmark = pytest.mark.live

Start = Callable[..., Zbatch]
NOBODY = "tcp://127.0.0.1:5999"
MODELS = """
class Shout:
    def predict(self, batch):
        return [text.upper() for text in batch]

class Mute:
    def forward(self, batch):
        return batch

class Short:
    def predict(self, batch):
        return batch[:-1]
"""


def plain(text: str) -> str:
    """Leave out what differs from run to run: measured times, folders and ports."""
    text = re.sub(r"\d+\.\d+ s\b", "N s", text)
    text = re.sub(r"/\S*/(?=modle\.py|farm\.toml)", "", text)
    return re.sub(r"tcp://127\.0\.0\.1:\d+", "tcp://127.0.0.1:PORT", text)


PAGE = plain((ROOT / "docs" / "operations.md").read_text(encoding="utf-8"))


def is_told(sentence: str, text: str) -> bool:
    """Return whether the text has the sentence, word for word, and the page as well."""
    return plain(sentence) in plain(text) and plain(sentence) in PAGE


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "model.py"
    file.write_text(MODELS)
    return str(file)


@pytest.fixture
def broker(run: Start, tmp_path: Path) -> str:
    frontend = f"ipc://{tmp_path}/front"
    run("broker", "--frontend", frontend, "--backend", f"ipc://{tmp_path}/back").says("broker started")
    return frontend


def test_a_wrong_port_says_where_nobody_answered() -> None:
    found = zbatch("predict", "--endpoint", NOBODY, "--timeout", "300ms", "shout", "hello")
    assert found.returncode == 1
    sentence = f"BrokerUnreachable: no broker at {NOBODY} answered within 0.3 s; is one running there, "
    sentence += "and reachable, or does it ask for a key?"
    assert is_told(sentence, found.stderr)
    with ZClient[str, str](NOBODY, timeout=0.3) as client, pytest.raises(BrokerUnreachable) as caught:
        client.predict(["hello"])
    assert is_told(sentence.partition(": ")[2], str(caught.value))
    found = zbatch("status", "--endpoint", NOBODY, "--timeout", "300ms")
    assert found.returncode == 1
    assert is_told(
        f"Error: BrokerUnreachable: no broker at {NOBODY} answered within 0.3 s; "
        "is one running, or does it ask for a key?",
        found.stderr,
    )


def test_a_worker_with_a_wrong_port_says_so_and_that_it_is_over(
    run: Start, model: str, tmp_path: Path
) -> None:
    backend = f"ipc://{tmp_path}/back"
    worker = run("worker", f"{model}:Shout", "--gpu", "cpu", "--backend", backend)
    text = worker.says("broker does not answer").replace(backend, NOBODY)
    assert is_told(f"warning worker: broker does not answer endpoint={NOBODY} silent_s=5", text)
    run("broker", "--frontend", f"ipc://{tmp_path}/front", "--backend", backend)
    worker.says("broker answers")


def test_no_worker_says_how_one_is_started(broker: str) -> None:
    found = zbatch("predict", "--endpoint", broker, "--timeout", "300ms", "shout", "hello")
    assert found.returncode == 1
    sentence = (
        "NoWorkers: the deadline passed after 0.3 s and no worker served topic 'shout' meanwhile; "
        "start one with: zbatch worker MODEL --topic shout"
    )
    assert is_told(sentence, found.stderr)
    with ZClient[str, str](broker, timeout=0.3) as client, pytest.raises(NoWorkers):
        client.predict(["hello"])
    found = zbatch("status", "--endpoint", broker, "--check", "--topic", "shout")
    assert found.returncode == 1
    assert is_told("Error: topic 'shout' has no worker; served here: none", found.stderr)


def test_a_typo_in_a_topic_names_those_that_are_served_while_the_request_waits(
    run: Start, model: str, broker: str, tmp_path: Path
) -> None:
    run("worker", f"{model}:Shout", "--topic", "shout", "--gpu", "cpu", "--backend", f"ipc://{tmp_path}/back")
    assert zbatch("predict", "--endpoint", broker, "shout", "hello").stdout == '"HELLO"\n'
    asking = run("predict", "--endpoint", broker, "--timeout", "10m", "shuot", "hello")
    assert is_told("note: topic 'shuot' has no worker; served here: shout", asking.says("served here"))
    loading = run("bench", "--endpoint", broker, "--timeout", "10m", "shuot")
    assert "topic 'shuot' has no worker; served here: shout" in loading.says("served here")


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_typo_in_the_path_of_a_model_names_what_is_there(command: str, model: str) -> None:
    found = zbatch(command, model.replace("model.py", "modle.py:Shout"), "--gpu", "cpu")
    assert found.returncode == 2
    assert is_told("Error: there is no file modle.py; did you mean model.py?", found.stderr)


def test_a_typo_in_the_name_of_a_model_names_what_is_there(model: str, tmp_path: Path) -> None:
    found = loaded(f"{model}:Shuot", tmp_path)
    assert found.returncode == 2
    text = found.stderr.replace(str(tmp_path) + "/", "").replace("Shout, Short?", "Shout?")
    assert is_told("model cannot be loaded why=\"model.py has no 'Shuot'; did you mean Shout?\"", text)
    assert text.count("model cannot be loaded") == 1
    assert text.splitlines()[-1] == "Error: model.py has no 'Shuot'; did you mean Shout?"


def test_serve_ends_at_once_for_a_typo_in_the_name_of_a_model(model: str, tmp_path: Path) -> None:
    found = zbatch("serve", f"{model}:Shuot", "--gpu", "cpu", "--frontend", f"ipc://{tmp_path}/front")
    assert found.returncode == 2
    assert found.stderr.count("model cannot be loaded") == 1
    assert f"Error: {model} has no 'Shuot'; did you mean Shout, Short?" in found.stderr.splitlines()


def test_a_model_without_predict_says_what_it_lacks(model: str, tmp_path: Path) -> None:
    found = loaded(f"{model}:Mute", tmp_path)
    assert found.returncode == 2
    assert is_told(
        'model cannot be loaded why="model.py:Mute has no method predict(self, batch); it has forward"',
        found.stderr.replace(str(tmp_path) + "/", ""),
    )


def test_a_signature_that_is_malformed_says_where(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        f"{MODELS}\nShout.signature = {{'inputs': [{{'name': 'x', 'shape': []}}], 'outputs': []}}\n"
    )
    found = loaded(f"{file}:Shout", tmp_path)
    assert found.returncode == 2
    assert is_told(
        'model cannot be loaded why="the signature of model.py:Shout is malformed: '
        "signature.inputs[0] has no 'datatype', wanted name, datatype, shape\"",
        found.stderr.replace(str(tmp_path) + "/", ""),
    )


def test_a_model_that_fails_at_zeros_of_its_signature_never_is_ready(tmp_path: Path) -> None:
    one = {"name": "x", "datatype": "FP32", "shape": [2]}
    file = tmp_path / "model.py"
    signature = {"inputs": [one], "outputs": [one]}
    file.write_text(
        f"class Half:\n    signature = {signature}\n    def predict(self, batch):\n        return [1 // 0]\n"
    )
    found = loaded(f"{file}:Half", tmp_path)
    assert found.returncode == 1
    assert "ZeroDivisionError" in found.stderr
    assert "model ready" not in found.stderr


def loaded(name: str, folder: Path) -> Any:
    """Run a worker whose model does not load; it needs no broker for that."""
    return zbatch("worker", name, "--gpu", "cpu", "--backend", f"ipc://{folder}/back")


def test_a_wrong_number_of_outputs_says_how_many_were_wanted(model: str) -> None:
    with package.local(f"{model}:Short") as client, pytest.raises(BadOutput) as caught:
        client.predict(["a", "b"])
    sentence = "BadOutput: predict returned 0 outputs for a batch of 1; wanted one for each item "
    sentence += "(before it was halved: predict returned 1 outputs for a batch of 2)"
    assert is_told(sentence, f"BadOutput: {caught.value}")


def test_an_array_of_objects_says_where_it_is_and_what_to_make_of_it() -> None:
    with ZClient[Any, Any](NOBODY) as client, pytest.raises(TypeError) as caught:
        client.predict([{"x": np.array([1, None], dtype=object)}])
    sentence = (
        "TypeError: item['x'] has dtype object; zbatch carries booleans, numbers, fixed strings, dates and "
        "times: make it one of these with .astype(...), or a list with .tolist()"
    )
    assert is_told(sentence, f"TypeError: {caught.value}")


def test_a_port_in_use_asks_whether_it_is_another_broker(run: Start, tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        found = zbatch("broker", "--frontend", endpoint, "--backend", f"ipc://{tmp_path}/back")
    assert found.returncode == 2
    assert is_told(
        f"Error: cannot listen on {endpoint}: it is in use; is another broker running?", found.stderr
    )


def test_a_lambda_cannot_be_named_as_a_model_or_sent_as_an_item() -> None:
    found = zbatch("worker", "lambda batch: batch", "--gpu", "cpu")
    assert found.returncode == 2
    sentence = (
        "Error: model is 'lambda batch: batch': a lambda has no name that other processes could load; put a "
        "function predict(batch) into a file and name it, as package.module:Name or path/file.py:Name"
    )
    assert is_told(sentence, found.stderr)
    with ZClient[Any, Any](NOBODY) as client, pytest.raises(TypeError) as caught:
        client.predict([lambda item: item])
    sentence = (
        "TypeError: item is a builtins.function, which cannot be sent; zbatch carries None, bool, int, "
        "float, complex, str, bytes, list, tuple, dict, dates, times, NumPy scalars, arrays, tensors"
    )
    assert is_told(sentence, f"TypeError: {caught.value}")


def test_an_unknown_option_names_those_that_are_near(model: str, tmp_path: Path) -> None:
    found = zbatch("worker", f"{model}:Shout", "--batchsize", "3")
    assert found.returncode == 2
    # The rest of the sentence is click's, whose versions differ in its commas.
    assert is_told("Error: No such option", found.stderr)
    assert is_told("--batch-size", found.stderr)
    file = tmp_path / "farm.toml"
    file.write_text(f'[worker]\nmodel = "{model}:Shout"\nbatchsize = 3\n')
    found = zbatch("worker", "--config", str(file))
    assert found.returncode == 2
    assert is_told(
        "Error: farm.toml: [worker] has no setting 'batchsize'; did you mean 'batch_size'?", found.stderr
    )


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_gpu_that_is_not_there_is_told_at_once(
    command: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    endpoint = ("--backend" if command == "worker" else "--frontend", f"ipc://{tmp_path}/end")
    found = zbatch(command, f"{model}:Shout", "--gpu", "7", *endpoint)
    assert found.returncode == 2
    assert is_told(
        "Error: GPU 7 is not there: there is none that this process may use; use --gpu cpu to run without",
        found.stderr,
    )
