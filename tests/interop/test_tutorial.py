"""The tutorial does what its README says: a line is started as it stands there, and asked over real HTTP."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.live.shell import ROOT, environment, until
from zbatch import ZClient

pytest.importorskip("transformers", reason="make test-interop has it")

from examples.bert_model import HEAVY_CHAIN, SENTENCES, TextInfillingModel, hidden
from examples.image_classifier import pixels
from examples.image_model import ImageClassifier
from examples.mosec_style import InOne
from examples.two_models import photo
from zbatch import Context

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
PATIENCE = 240.0
"""Seconds for models to load; guards against hanging."""

FLASK = "python examples/flask_example.py"
MULTIGPU = "python examples/flask_multigpu_example.py"
BROKER = "zbatch broker --frontend tcp://127.0.0.2:7000 --backend tcp://127.0.0.2:7001"
WORKER = (
    "zbatch worker examples/bert_model.py:ManagedBertModel --backend tcp://127.0.0.2:7001 --batch-size 64"
)
GUNICORN = "gunicorn -c examples/gunicorn_conf.py examples.gunicorn_example:app"
IMAGES = "zbatch serve examples/image_model.py:ImageClassifier --topic images --frontend tcp://127.0.0.1:7000"
CLASSIFIER = "python examples/image_classifier.py"
IN_ONE = "zbatch serve examples/mosec_style.py:InOne --topic photos --http 127.0.0.1:8000"
STAGES = "zbatch serve --config examples/mosec_style.toml"

LABEL = next(line.strip() for line in README.splitlines() if line.endswith("/predict/photos"))
CURLS = [line.strip() for line in README.splitlines() if line.startswith("    curl -X POST")]

TEXT = "http://localhost:5005"
CHAIN = [hidden(residue) for residue in range(len(HEAVY_CHAIN))]

Start = Callable[..., subprocess.Popen[bytes]]


class Ended(Exception):
    """A command that was to run on has ended; the text is what it wrote."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start what the README says; at the end of the module nothing of it is left."""
    log = tmp_path_factory.mktemp("tutorial") / "log"
    running: list[subprocess.Popen[bytes]] = []

    def start(line: str, url: str = "") -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command(line), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT, env=clean()
            )
        running.append(process)
        until(lambda: not url or answers(process, url, log))
        return process

    yield start
    for process in running:
        if process.poll() is None:
            stop(process)


@pytest.fixture(scope="module")
def model() -> TextInfillingModel:
    """Give the model itself, to be called directly."""
    return TextInfillingModel()


@pytest.fixture(scope="module")
def words(model: TextInfillingModel) -> list[str]:
    """Give what the model says, sentence by sentence."""
    return [model.predict([sentence])[0] for sentence in CHAIN]


def test_the_model_knows_an_antibody(words: list[str]) -> None:
    known = sum(word == residue for word, residue in zip(words, HEAVY_CHAIN, strict=True))
    assert known >= 119
    assert len(HEAVY_CHAIN) == 121


@pytest.mark.parametrize("language", ["protein", "english"])
def test_an_answer_does_not_depend_on_its_company(language: str) -> None:
    model = TextInfillingModel(language)
    sentences = {
        "protein": [sentence[: 97 + place % 24] for place, sentence in enumerate(CHAIN[:96])],
        "english": [
            " ".join([*["so"] * (place % 9), sentence])
            for place in range(30)
            for sentence in SENTENCES["english"]
        ],
    }[language]
    alone = [model.predict([sentence])[0] for sentence in sentences]
    for size in (2, 3, 16, 64, len(sentences)):
        batches = [sentences[start : start + size] for start in range(0, len(sentences), size)]
        assert [word for batch in batches for word in model.predict(batch)] == alone


def test_a_sentence_without_a_mask_is_told(model: TextInfillingModel) -> None:
    with pytest.raises(ValueError, match=r"wanted a \[MASK\] in 'EVQ'"):
        model.predict([CHAIN[0], "EVQ"])


def test_the_model_prints_what_the_readme_says() -> None:
    printed = output_of("python examples/bert_model.py")
    for line in printed.splitlines():
        assert f"    {line}\n" in README
    assert len(printed.splitlines()) == 2


def test_flask_answers_as_the_direct_call(start: Start, words: list[str]) -> None:
    flask = start(FLASK, TEXT)
    for path in ("/naive", "/stream"):
        assert ask(f"{TEXT}{path}", CHAIN[:5]) == words[:5]
        assert ask_all(f"{TEXT}{path}") == words
    assert [curled(line) for line in CURLS[:2]] == [["G"], ["G"]]
    stop(flask)


def test_model_processes_of_its_own_answer_the_same(start: Start, words: list[str]) -> None:
    web = start(MULTIGPU, TEXT)
    assert ask(f"{TEXT}/stream", CHAIN[:5]) == words[:5]
    assert ask_all(f"{TEXT}/stream") == words
    family = psutil.Process(web.pid).children(recursive=True)
    assert len(family) >= 3  # a broker, and at least as many others as there are models
    stop(web)
    assert not psutil.wait_procs(family, PATIENCE)[1]


def test_a_farm_answers_the_same_in_batches_of_all_web_processes(start: Start, words: list[str]) -> None:
    farm = [start(BROKER), start(WORKER), start(GUNICORN, TEXT)]
    with ZClient[str, str]("tcp://127.0.0.2:7000", timeout=PATIENCE) as client:
        client.predict_one(CHAIN[0])  # it is loaded
        before = client.status()["topics"]["default"]
        assert ask(f"{TEXT}/stream", CHAIN[:5]) == words[:5]
        assert ask_all(f"{TEXT}/stream") == words
        # Both web processes are known, and what they asked for ran together.
        status = client.status()
        after = status["topics"]["default"]
        assert status["clients"] == 3
        assert after["batches"] - before["batches"] < len(CHAIN)
    assert curled(CURLS[2]) == ["G"]
    assert refused(f"{TEXT}/stream", ["EVQ"])["error"].startswith("ValueError: wanted a [MASK]")
    for one in reversed(farm):
        stop(one)


def test_photos_are_labelled_over_http(start: Start) -> None:
    images, web = start(IMAGES), start(CLASSIFIER, "http://localhost:5006")
    direct = ImageClassifier()
    direct.setup(Context())
    photos = [photo("china.jpg"), photo("flower.jpg")]
    labels = direct.predict([pixels(BytesIO(one.read_bytes())) for one in photos])
    assert [one[0][0] for one in labels] == ["palace", "daisy"]

    def upload(_: int = 0) -> list[Any]:
        files = " ".join(f"-F image=@{one}" for one in photos)
        found: list[Any] = curled(f"curl {files} http://localhost:5006/classify")
        return found

    assert same(upload(), labels)
    with ThreadPoolExecutor(8) as askers:
        for answer in askers.map(upload, range(16)):
            assert same(answer, labels)
    wrong = curled(f"curl -F image=@{ROOT}/README.md http://localhost:5006/classify")
    assert wrong == {"error": "wanted a JPEG or another photo"}
    stop(web)
    stop(images)


def test_two_models_answer_at_one_broker(start: Start) -> None:
    serve = start("zbatch serve --config examples/two_models.toml")
    infilling, images = output_of("python examples/two_models.py").splitlines()
    assert infilling == "['G']"
    assert images.startswith("[[('daisy', ")
    stop(serve)


@pytest.mark.parametrize("line", [IN_ONE, STAGES])
def test_stages_answer_over_http_as_the_direct_call(start: Start, line: str) -> None:
    direct = InOne()
    direct.setup(Context())
    files = [photo("china.jpg").read_bytes(), b"no photo", photo("flower.jpg").read_bytes()]
    china, _, flower = direct.predict(files)
    serve = start(line, "http://127.0.0.1:8000/health/ready")
    # Both photos many times over, so that they share batches with each other and with what is no photo.
    with ThreadPoolExecutor(24) as askers:
        answers = list(askers.map(post, files * 16))
    assert [status for status, _ in answers] == [200, 422, 200] * 16
    assert {answer["code"] for status, answer in answers if status != 200} == {"bad_input"}
    assert all(like(answer, china) for _, answer in answers[0::3])
    assert all(like(answer, flower) for _, answer in answers[2::3])
    shutil.copy(photo("flower.jpg"), "/tmp/flower.jpg")
    assert like(curled(LABEL), json.loads(README.partition(f"{LABEL}\n")[2].partition("\n")[0]))
    stop(serve)


def test_photos_go_from_stage_to_stage(start: Start) -> None:
    serve = start("zbatch serve --config examples/pipeline/photos.toml")
    photos = f"{photo('china.jpg')} {photo('flower.jpg')}"
    told = output_of(f"python examples/pipeline/ask.py {photos} {ROOT}/README.md", in_readme=False)
    palace, daisy, wrong = told.splitlines()
    assert re.fullmatch(r"china.jpg: palace \(\d+%\)", palace)
    assert re.fullmatch(r"flower.jpg: daisy \(\d+%\)", daisy)
    assert wrong == "README.md: stage 'decode': wanted a JPEG or another photo"
    direct = ImageClassifier()
    direct.setup(Context())
    files = [photo("china.jpg").read_bytes(), photo("flower.jpg").read_bytes()]
    labels = direct.predict([pixels(BytesIO(one)) for one in files])
    with ZClient[Any, Any]("tcp://127.0.0.1:7000", topic="labels", timeout=PATIENCE) as client:
        for answer in [client.submit(files) for _ in range(16)]:
            assert same(answer.result(), labels)
        topics = client.status()["topics"]
    # What is no photo never came to the second stage.
    assert (topics["decode"]["items"], topics["images"]["items"]) == (35, 34)
    stop(serve)


def test_futures_come_to_a_table() -> None:
    printed = output_of("python examples/future_example.py --simulated", in_readme=False)
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    assert header == ["model processes", "naive", "batched", "ThreadedStreamer", "Streamer", "ZStreamer"]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert all(float(cell) > 0 for row in rows for cell in row if cell)


def test_every_example_has_a_line() -> None:
    named = set(re.findall(r"\]\(([\w/]+\.py)\)", README))
    there = {one.name for one in (ROOT / "examples").glob("*.py")}
    assert there - named == {"doubler.py", "shout.py", "gunicorn_conf.py", "oip_model.py"}


def command(line: str, in_readme: bool = True) -> list[str]:
    """Return the words of a command of the README, of this environment."""
    assert not in_readme or line in README, f"examples/README.md does not say {line}"
    name, *words = line.split()
    return [str(Path(sys.executable).parent / name), *words]


def output_of(line: str, in_readme: bool = True) -> str:
    done = subprocess.run(
        command(line, in_readme),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean(),
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def clean() -> dict[str, str]:
    """Return an environment without settings of zbatch, and without a path that a reader would not have."""
    return {name: value for name, value in environment().items() if name != "PYTHONPATH"}


def answers(process: subprocess.Popen[bytes], url: str, log: Path) -> bool:
    """Return whether a server answers; raise if it has ended instead."""
    if process.poll() is not None:
        raise Ended(log.read_text())
    try:
        urlopen(url, timeout=5).close()
    except HTTPError:
        return True  # no such page, says the server
    except OSError:
        return False
    return True


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that runs until it is told to leave, and see that it ends."""
    assert process.poll() is None, f"{process.args!r} has ended with {process.returncode}"
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def ask(url: str, sentences: Sequence[str]) -> Any:
    """POST a form with a field ``s`` for each sentence."""
    body = urlencode([("s", sentence) for sentence in sentences]).encode()
    with urlopen(Request(url, body), timeout=PATIENCE) as response:
        return json.load(response)


def ask_all(url: str) -> list[str]:
    """Ask for each residue of the chain in a request of its own, many at once; return the answers."""
    with ThreadPoolExecutor(32) as askers:
        answers = list(askers.map(lambda sentence: ask(url, [sentence]), CHAIN))
    return [word for answer in answers for word in answer]


def refused(url: str, sentences: Sequence[str]) -> Any:
    """Return the body of the error that a request ends in."""
    with pytest.raises(HTTPError) as error:
        ask(url, sentences)
    return json.load(error.value)


def post(file: bytes) -> tuple[int, Any]:
    """POST a photo's bytes; return the status and what came."""
    long = f"wait={PATIENCE:g}s&timeout={PATIENCE:g}s"  # the models may still load
    request = Request(f"http://127.0.0.1:8000/predict/photos?{long}", file, {"Content-Type": "image/jpeg"})
    try:
        with urlopen(request, timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def like(answer: Any, direct: Any) -> bool:
    """Return whether an answer is the direct one, as far as a batch's rounding allows."""
    near = abs(answer["share"] - direct["share"]) < 1e-3
    return near and bool(answer | {"share": 0} == direct | {"share": 0})


def curled(line: str) -> Any:
    """Run a line of the README with curl; return the JSON that it prints."""
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=PATIENCE, check=True)
    return json.loads(done.stdout)


def same(answer: list[Any], labels: list[list[tuple[str, float]]]) -> bool:
    """Return whether labels are the same, and how likely they are, as far as a batch's rounding allows."""
    return [[label for label, _ in one] for one in answer] == [
        [label for label, _ in one] for one in labels
    ] and all(
        abs(mine[1] - theirs[1]) < 1e-4
        for one, two in zip(answer, labels, strict=True)
        for mine, theirs in zip(one, two, strict=True)
    )
