"""What becomes of the items of a lost worker: who is guilty, what runs again, and in what company.

Three cases, told apart by the note that a model process leaves behind (``Child`` in ``messages.py``):

* it died while it ran a batch: that batch never runs again unchanged.  It is halved, each half runs apart;
  an item that ends two processes while alone is poison;
* it was lost without a word (host, link, lease): everything that began costs an attempt, nobody is guilty;
* what never began goes back for nothing.

Nothing here knows queues or workers; ``dispatch.py`` carries the verdict out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zbatch.core.backlog import CLOSED, RUNNING, Span, runs

ATTEMPTS = 3
"""Workers that may be lost under an item: one is bad luck, two happen in a bad hour, three are a pattern."""

DEATHS_ALONE = 2
"""Processes that one item may end: the first death can be a coincidence, the second is not."""


@dataclass(slots=True)
class Verdict:
    """What to do with each span of a lost batch."""

    again: list[Span] = field(default_factory=list)
    """Back to the head of the queue."""
    apart: list[list[Span]] = field(default_factory=list)
    """Each list runs apart, one after the other."""
    poisoned: list[Span] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)
    """Out of attempts."""


def never_began(spans: Sequence[Span]) -> Verdict:
    """Return everything to the queue; it cost nothing."""
    return Verdict(again=alive(spans))


def lost_quietly(spans: Sequence[Span]) -> Verdict:
    """Charge an attempt: the worker is gone and nobody knows why."""
    verdict = Verdict()
    for span in alive(spans):
        span.attempts += 1
        (verdict.lost if span.attempts >= ATTEMPTS else verdict.again).append(span)
    return verdict


def died_running(spans: Sequence[Span]) -> Verdict:
    """Look for the culprit: halve the batch, or count against the item that was alone."""
    living = alive(spans)
    items = sum(span.stop - span.start for span in living)
    if not items:
        return Verdict()
    if items > 1:
        return Verdict(apart=_halves(living, items))
    only = living[0]
    only.alone += 1
    if only.alone >= DEATHS_ALONE:
        return Verdict(poisoned=[only])
    return Verdict(apart=[[only]])


def alive(spans: Sequence[Span]) -> list[Span]:
    """Return the parts of the spans whose items still have no outcome."""
    living: list[Span] = []
    for span in spans:
        if span.held.state.find(CLOSED, span.start, span.stop) < 0:
            living.append(span)
        else:
            living += [span.part(*one) for one in runs(span.held, RUNNING, span.start, span.stop)]
    return living


def _halves(spans: Sequence[Span], items: int) -> list[list[Span]]:
    first: list[Span] = []
    second: list[Span] = []
    room = items // 2
    for span in spans:
        count = min(room, span.stop - span.start)
        cut = span.start + count
        if count:
            first.append(span.part(span.start, cut))
        if cut < span.stop:
            second.append(span.part(cut, span.stop))
        room -= count
    return [first, second]
