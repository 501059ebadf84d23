"""Every story of tests/stories is true; a story that is not, fails and says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storytelling import Untrue, stories, tell


@pytest.mark.parametrize("path", stories().values(), ids=stories())
def test_the_story_is_true(path: Path) -> None:
    tell(path.read_text(), path.name)


def test_there_are_stories() -> None:
    assert len(stories()) >= 20


def test_a_story_in_which_something_else_happens_is_untrue() -> None:
    story = """
0.000  worker w1 joins with batches of 4
0.000  ada asks for 1
0.000  w1 gets ada:2
"""
    with pytest.raises(Untrue) as caught:
        tell(story, "wrong.txt")
    assert str(caught.value) == (
        "after wrong.txt:3: ada asks for 1\n"
        "the story tells\n  w1 gets ada:2\n"
        "and what happens is\n  w1 gets ada:1"
    )


def test_a_story_that_leaves_something_out_is_untrue() -> None:
    with pytest.raises(Untrue, match=r"the story tells\n  nothing\nand what happens is\n  w1 gets ada:1"):
        tell("0.000  worker w1 joins with batches of 4\n0.000  ada asks for 1")


def test_a_line_that_nobody_understands_is_named() -> None:
    with pytest.raises(Untrue, match=r"odd\.txt:2: nobody knows what this means: ada sings"):
        tell("A title\n0.000  ada sings", "odd.txt")


def test_what_is_heard_needs_something_that_happens_then() -> None:
    with pytest.raises(Untrue, match=r"what is heard at 0\.001 needs something that happens then"):
        tell("0.000  ada asks for 1\n0.001  ada has answers to 1")
