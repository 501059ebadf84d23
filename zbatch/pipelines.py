"""How a pipeline is written, in Python and in a broker's settings: steps that become a route of stages.

A step is a topic, or a dict of branches that run beside each other; a branch is a topic, a list of topics
one behind the other, or an empty list, which hands on what came.  The step behind branches gets a dict, with
what each of them made under its name.  What becomes of a request on its way is decided in
``core/pipeline.py`` and ``core/ways.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zbatch import notation
from zbatch.errors import BadRequest
from zbatch.messages import MAX_STAGES, Route, Stage
from zbatch.notation import Written

LABEL = 128
"""Characters of a topic's name."""

Branch = str | Sequence[str]
Step = str | Mapping[str, Branch]

_Inputs = tuple[tuple[str, int], ...]


class Pipeline(NamedTuple):
    """Topics that a request goes through one after the other: what :func:`pipeline` returns."""

    name: str
    """For people: errors say it where a topic's name would stand."""
    route: Route


def pipeline(*steps: Step) -> Pipeline:
    """Return a pipeline, to be asked wherever a client takes a topic.

    ``pipeline("decode", "classify")``: what topic ``decode`` makes of an item is the item of ``classify``.
    ``pipeline("decode", {"boxes": "detect", "names": ["resize", "classify"]}, "draw")``: a dict branches, and
    ``draw`` gets a dict with ``boxes`` and ``names``.  Raises :class:`BadRequest` for what is no pipeline.
    """
    try:
        route = build(steps)
    except ValueError as error:
        raise BadRequest(f"pipeline: {error}") from None
    label = " > ".join(_said(step) for step in steps)
    return Pipeline(label if len(label) <= LABEL else label[: LABEL - 3] + "...", route)


def named(value: object) -> dict[str, Any]:
    """Read pipelines by name: a table, or texts ``NAME=TOPIC,TOPIC`` (or ``NAME=`` and the steps as JSON)."""
    read = {}
    for name, written in notation.pairs(value).items():
        try:
            steps = _steps(written) if isinstance(written, str) else written
            build(steps)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        read[notation.topic(name)] = steps
    return read


def _steps(written: str) -> object:
    """Read the topics of a line, which may be there twice, or steps as JSON."""
    if not written.lstrip().startswith(("[", "{")):
        return [topic.strip() for topic in written.split(",") if topic.strip()]
    steps = notation.json_or_text(written)
    if isinstance(steps, str):
        raise ValueError(f"wanted TOPIC,TOPIC or steps as JSON, got {written!r:.80}, which is no valid JSON")
    return steps


NAMED = Written("NAME=TOPIC,TOPIC", named, notation.toml, many=True)


def build(steps: object) -> Route:
    """Return the stages of some steps; raises ``ValueError`` with a sentence for what is no pipeline."""
    if isinstance(steps, str | bytes) or not isinstance(steps, Sequence) or not steps:
        raise ValueError(f"wanted steps, such as 'decode', 'classify', got {steps!r:.80}")
    builder = _Builder()
    inputs: _Inputs = (("", 0),)
    for step in steps:
        if isinstance(step, Mapping):
            inputs = builder.branches(step, inputs)
        else:
            inputs = builder.stage(step, step, inputs)
    if not isinstance(steps[-1], str):
        raise ValueError("the last step has branches: wanted a topic behind them that gets what they made")
    if len(builder.stages) > MAX_STAGES:
        raise ValueError(f"wanted at most {MAX_STAGES} stages, got {len(builder.stages)}")
    return tuple(builder.stages)


class _Builder:
    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._names: set[str] = set()

    def stage(self, name: object, topic: object, inputs: _Inputs) -> _Inputs:
        """Add a stage; return what it makes, as an input."""
        if not isinstance(topic, str) or not isinstance(name, str):
            raise ValueError(f"wanted a topic or a dict of branches as a step, got {topic!r:.80}")
        self.stages.append(Stage(self._unused(name), notation.topic(topic), inputs))
        return (("", len(self.stages)),)

    def branches(self, step: Mapping[Any, Any], inputs: _Inputs) -> _Inputs:
        """Add the branches of a step; return what they make, by name."""
        if not 1 <= len(step) <= MAX_STAGES:
            raise ValueError(f"wanted 1 to {MAX_STAGES} branches in a step, got {len(step)}")
        return tuple((_checked(name), self._end_of(name, branch, inputs)) for name, branch in step.items())

    def _end_of(self, name: str, branch: object, inputs: _Inputs) -> int:
        """Add a branch; return the number of what it makes."""
        topics = [branch] if isinstance(branch, str) else branch
        if not isinstance(topics, list | tuple):
            raise ValueError(f"branch {name!r}: wanted a topic or a list of topics, got {branch!r:.80}")
        for topic in topics:
            inputs = self.stage(name if len(topics) == 1 else f"{name}.{topic}", topic, inputs)
        if len(inputs) > 1 or inputs[0][0]:
            raise ValueError(f"branch {name!r}: is empty right behind other branches; wanted a topic there")
        return inputs[0][1]

    def _unused(self, name: str) -> str:
        """Return a stage's name, with a number where another stage has it."""
        wanted, number = name[:LABEL], 1
        while wanted in self._names:
            number += 1
            wanted = f"{name[: LABEL - 6]}#{number}"
        self._names.add(wanted)
        return wanted


def _checked(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= LABEL or not name.isprintable():
        raise ValueError(f"wanted a branch's name, 1 to {LABEL} printable characters, got {name!r:.80}")
    return name


def _said(step: Step) -> str:
    return step if isinstance(step, str) else "{" + " | ".join(step) + "}"
