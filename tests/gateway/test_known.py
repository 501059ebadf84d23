"""Which topics there are, as far as a gateway can know."""

from __future__ import annotations

from typing import Any

import pytest

from zbatch.errors import NoWorkers, UnknownTopic
from zbatch.gateway.known import REMEMBERED, Known


def snapshot(uptime: float = 100.0, **workers: int) -> dict[str, Any]:
    topics = {name: {"workers": count, "batches": 0} for name, count in workers.items()}
    return {"uptime_s": uptime, "topics": topics}


def known(*wanted: str, **workers: int) -> Known:
    made = Known(wanted)
    made.learn(snapshot(**workers), 50.0)
    return made


def test_a_topic_with_workers_is_asked() -> None:
    assert known(bert=1).objection("bert", 50.0) is None


def test_a_topic_that_nobody_ever_served_is_unknown_and_the_error_names_those_that_are() -> None:
    objection = known(bert=1, resnet=2, asked_for=0).objection("brt", 50.0)

    assert isinstance(objection, UnknownTopic)
    assert str(objection) == "nobody has served topic 'brt'; there are 'bert', 'resnet'"


def test_an_error_names_some_topics_and_counts_the_rest() -> None:
    objection = known(**{f"t{number:02}": 1 for number in range(20)}).objection("x", 50.0)

    assert str(objection).endswith("'t06', 't07' and 12 more")


def test_without_any_topic_there_are_none() -> None:
    assert str(known().objection("x", 50.0)).endswith("there are none")


def test_a_topic_whose_workers_are_gone_is_an_outage() -> None:
    made = known(bert=1)
    made.learn(snapshot(bert=0), 51.0)

    objection = made.objection("bert", 51.0)

    assert isinstance(objection, NoWorkers)
    assert objection.http_status == 503


def test_a_restarted_broker_does_not_make_known_topics_unknown() -> None:
    made = known(bert=1)
    made.learn(snapshot(uptime=11.0), 51.0)

    assert isinstance(made.objection("bert", 51.0), NoWorkers)


def test_what_served_before_the_gateway_came_is_no_stranger() -> None:
    made = Known()
    told = snapshot(bert=0)
    told["topics"]["bert"]["batches"] = 7
    made.learn(told, 50.0)

    assert isinstance(made.objection("bert", 50.0), NoWorkers)


@pytest.mark.parametrize("topic", ["bert", "unheard of"])
def test_in_a_brokers_first_ten_seconds_everything_waits(topic: str) -> None:
    made = known(bert=1)
    made.learn(snapshot(uptime=2.0, bert=0), 60.0)

    assert made.objection(topic, 67.9) is None
    made.learn(snapshot(uptime=10.5, bert=0), 68.5)
    assert made.objection(topic, 68.5) is not None


def test_at_a_young_broker_a_name_that_nobody_served_may_come_until_it_is_ten_seconds_old() -> None:
    made = known(bert=1)
    assert not made.may_come("brt", 50.0)
    made.learn(snapshot(uptime=1.0, bert=0, resnet=1, asked_for=0), 60.0)

    assert made.may_come("brt", 68.9)
    assert made.may_come("asked_for", 68.9)
    assert not made.may_come("brt", 69.0)
    # What was seen, and what is served, is asked for at once.
    assert not made.may_come("bert", 60.0)
    assert not made.may_come("resnet", 60.0)
    asked = [name for name in ("bert", "resnet", "brt") if made.is_to_be_asked(name, 60.0)]
    assert asked == ["bert", "resnet"]


def test_without_a_fresh_snapshot_the_question_itself_finds_out() -> None:
    assert Known().objection("bert", 0.0) is None
    assert known(resnet=1).objection("bert", 55.0) is not None
    assert known(resnet=1).objection("bert", 55.1) is None


def test_ready_is_a_broker_that_answers_and_a_topic_with_workers() -> None:
    assert not Known().is_ready(0.0)
    assert not known(bert=0).is_ready(50.0)
    assert known(bert=1).is_ready(50.0)
    assert not known(bert=1).is_ready(60.0)


def test_ready_waits_for_all_that_were_named_and_then_for_any() -> None:
    made = known("bert", "resnet", bert=1)
    assert not made.is_ready(50.0)

    made.learn(snapshot(bert=1, resnet=1), 51.0)
    assert made.is_ready(51.0)

    made.learn(snapshot(bert=1, resnet=0), 52.0)
    assert made.is_ready(52.0)


def test_of_topics_that_come_and_go_for_ever_the_latest_are_remembered() -> None:
    made = known("first", first=1, still=1)
    for now in range(51, 51 + 2 * REMEMBERED // 100):
        made.learn(snapshot(still=1, **{f"t{now}_{number}": 1 for number in range(100)}), float(now))
    made.learn(snapshot(), float(now))

    assert len(made._seen) == REMEMBERED
    assert isinstance(made.objection(f"t{now}_0", float(now)), NoWorkers)
    assert isinstance(made.objection("still", float(now)), NoWorkers)
    assert isinstance(made.objection("first", float(now)), UnknownTopic)


def test_what_was_wanted_and_seen_stays_so_once_it_is_forgotten() -> None:
    made = known("first", first=1)
    made.learn(snapshot(**{f"t{number}": 1 for number in range(REMEMBERED)}), 51.0)

    assert isinstance(made.objection("first", 51.0), UnknownTopic)
    assert made.is_ready(51.0)


# --- pipelines -----------------------------------------------------------------------------------


def with_pipelines(known: Known, now: float = 50.0, **ready: bool) -> Known:
    stages = [{"name": "read", "topic": "bert"}, {"name": "judge", "topic": "resnet"}]
    pipelines = {name: {"stages": stages[: 2 - one], "ready": one} for name, one in ready.items()}
    known.learn(snapshot(bert=1) | {"pipelines": pipelines}, now)
    return known


def test_a_pipeline_that_the_broker_knows_is_asked_as_a_topic() -> None:
    made = with_pipelines(Known(("photos",)), photos=True)

    assert made.objection("photos", 50.0) is None
    assert made.is_ready(50.0)
    assert str(made.objection("x", 50.0)).endswith("there are 'bert', 'photos'")


def test_a_pipeline_is_offered_beside_the_topics_and_says_nothing_of_its_items() -> None:
    made = with_pipelines(Known(), photos=True, bert=False)

    assert made.offered == {"bert": {}, "photos": {}}


def test_a_pipeline_with_a_stage_that_nobody_serves_is_an_outage() -> None:
    made = with_pipelines(Known(("photos",)), photos=False)

    objection = made.objection("photos", 50.0)

    assert isinstance(objection, NoWorkers)
    assert str(objection) == "stage 'judge' of pipeline 'photos' has no workers now"
    assert not made.is_ready(50.0)


def test_a_pipeline_goes_before_a_topic_of_its_name() -> None:
    assert isinstance(with_pipelines(Known(), bert=False).objection("bert", 50.0), NoWorkers)


def test_a_pipeline_that_a_young_broker_knows_need_not_come() -> None:
    made = Known()
    made.learn(snapshot(uptime=1.0) | {"pipelines": {"photos": {"stages": [], "ready": False}}}, 60.0)

    assert not made.may_come("photos", 60.0)
    assert made.may_come("photo", 60.0)


def test_before_a_broker_was_heard_any_name_may_come_but_for_those_that_were_named() -> None:
    made = Known(("bert",))

    assert made.may_come("brt", 60.0)
    assert not made.may_come("bert", 60.0)
    assert not made.has_learned
    assert made.objection("brt", 60.0) is None


def test_a_broker_that_takes_only_some_topics_says_so_at_once_however_young() -> None:
    made = Known()
    made.learn(snapshot(uptime=1.0) | {"only_topics": ["resnet", "bert"]}, 60.0)

    objection = made.objection("brt", 60.0)

    assert isinstance(objection, UnknownTopic)
    assert str(objection) == "topic 'brt' is not served here; this broker serves 'bert', 'resnet'"
    assert made.objection("bert", 60.0) is None
    assert made.may_come("bert", 60.0)


def test_what_is_left_of_a_brokers_youth_is_known() -> None:
    made = Known()
    made.learn(snapshot(uptime=4.0), 60.0)

    assert [made.youth_left(now) for now in (60.0, 65.0, 70.0)] == [6.0, 1.0, 0.0]


def test_it_says_whether_a_snapshot_shows_others_served() -> None:
    made = Known()

    assert made.learn(snapshot(bert=1), 60.0)
    assert not made.learn(snapshot(bert=2), 61.0)
    assert made.learn(snapshot(bert=0), 62.0)
    assert not made.learn(snapshot(bert=0, asked_for=0), 63.0)
    assert made.learn(snapshot(bert=0) | {"only_topics": ["bert"]}, 64.0)
