"""How a pipeline is written: steps become stages, and what is none is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from zbatch import BadRequest, pipeline
from zbatch.core.pipeline import problem
from zbatch.messages import MAX_STAGES, Stage
from zbatch.pipelines import NAMED, build


def test_topics_one_behind_the_other() -> None:
    pipe = pipeline("pre", "bert", "post")
    assert pipe.name == "pre > bert > post"
    assert pipe.route == (
        Stage("pre", "pre", (("", 0),)),
        Stage("bert", "bert", (("", 1),)),
        Stage("post", "post", (("", 2),)),
    )


def test_branches_are_a_dict_and_the_step_behind_them_gets_one() -> None:
    pipe = pipeline("decode", {"boxes": "detect", "names": ["resize", "classify"]}, "draw")
    assert pipe.name == "decode > {boxes | names} > draw"
    assert pipe.route == (
        Stage("decode", "decode", (("", 0),)),
        Stage("boxes", "detect", (("", 1),)),
        Stage("names.resize", "resize", (("", 1),)),
        Stage("names.classify", "classify", (("", 3),)),
        Stage("draw", "draw", (("boxes", 2), ("names", 4))),
    )


def test_an_empty_branch_hands_on_what_came() -> None:
    assert build([{"photo": [], "boxes": "detect"}, "draw"]) == (
        Stage("boxes", "detect", (("", 0),)),
        Stage("draw", "draw", (("photo", 0), ("boxes", 1))),
    )


def test_branches_behind_branches_get_the_dict_each() -> None:
    assert build([{"a": "x", "b": "y"}, {"c": "z", "d": ["z", "w"]}, "end"]) == (
        Stage("a", "x", (("", 0),)),
        Stage("b", "y", (("", 0),)),
        Stage("c", "z", (("a", 1), ("b", 2))),
        Stage("d.z", "z", (("a", 1), ("b", 2))),
        Stage("d.w", "w", (("", 4),)),
        Stage("end", "end", (("c", 3), ("d", 5))),
    )


def test_a_topic_may_come_twice_and_its_stages_are_told_apart() -> None:
    assert [stage.name for stage in build(["up", "up", "up"])] == ["up", "up#2", "up#3"]


def test_a_name_for_people_is_no_longer_than_a_topics() -> None:
    pipe = pipeline(*["a topic of twenty-four."] * 10)
    assert len(pipe.name) == 128
    assert pipe.name.endswith("...")


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "wanted steps, such as 'decode', 'classify', got []"),
        ("decode", "wanted steps, such as 'decode', 'classify', got 'decode'"),
        (["a", 3], "wanted a topic or a dict of branches as a step, got 3"),
        (["a", ["b"]], "wanted a topic or a dict of branches as a step, got ['b']"),
        (["a,b"], "wanted a topic's name, 1 to 128 printable characters without a comma, got 'a,b'"),
        (["a", {}, "b"], "wanted 1 to 32 branches in a step, got 0"),
        (["a", {"x": 3}, "b"], "branch 'x': wanted a topic or a list of topics, got 3"),
        (["a", {"x": [3]}, "b"], "wanted a topic or a dict of branches as a step, got 3"),
        (["a", {"": "x"}, "b"], "wanted a branch's name, 1 to 128 printable characters, got ''"),
        (["a", {3: "x"}, "b"], "wanted a branch's name, 1 to 128 printable characters, got 3"),
        (
            [{"x": "a", "y": "b"}, {"z": []}, "c"],
            "branch 'z': is empty right behind other branches; wanted a topic there",
        ),
        (
            ["a", {"x": "b"}],
            "the last step has branches: wanted a topic behind them that gets what they made",
        ),
        (["a"] * 33, "wanted at most 32 stages, got 33"),
    ],
)
def test_what_is_no_pipeline_is_refused_with_a_sentence(steps: Any, why: str) -> None:
    with pytest.raises(ValueError) as refusal:
        build(steps)
    assert str(refusal.value) == why


def test_a_caller_is_told_by_bad_request() -> None:
    with pytest.raises(BadRequest) as refusal:
        pipeline()
    assert str(refusal.value) == "pipeline: wanted steps, such as 'decode', 'classify', got ()"


@pytest.mark.parametrize(
    "steps",
    [["a"], ["a"] * MAX_STAGES, ["a", {"x": "b", "y": ["c", "d"], "z": []}, "e"], [{"x": []}, "a"]],
)
def test_what_is_built_is_a_route(steps: Any) -> None:
    assert problem(build(steps)) is None


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        {"photos": ["decode", "classify"]},
        "photos=decode,classify",
        ["photos=decode, classify"],
        'photos=["decode", "classify"]',
        '{"photos": ["decode", "classify"]}',
        {"photos": '["decode", "classify"]'},
    ],
)
def test_a_named_pipeline_may_be_written_so(written: object) -> None:
    assert NAMED.read(written) == {"photos": ["decode", "classify"]}


def test_a_topic_may_come_twice_in_a_line() -> None:
    assert NAMED.read("photos=clean,classify,clean") == {"photos": ["clean", "classify", "clean"]}


def test_steps_that_are_nearly_json_are_no_names_of_topics() -> None:
    with pytest.raises(ValueError, match=r"^photos: .* which is no valid JSON$"):
        NAMED.read('photos=["decode", {"label": "classify"]')


def test_a_named_pipeline_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"^photos: the last step has branches"):
        NAMED.read({"photos": ["decode", {"x": "a"}]})


def test_a_named_pipeline_is_shown_as_it_is_read() -> None:
    steps = {"photos": ["decode", {"boxes": "detect", "whole photo": []}, "draw"]}
    assert NAMED.show(steps) == ('{photos = ["decode", {boxes = "detect", "whole photo" = []}, "draw"]}')
