from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zbatch.core.deadlines import GRAIN, Deadlines

TIMES = st.integers(0, 200).map(lambda eighths: eighths * GRAIN / 8)


def test_nothing_is_due_without_entries() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next() is None
    assert deadlines.due(1e9) == []


def test_an_entry_is_due_at_its_time_and_not_before() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add(2.0, "a")
    assert deadlines.next() == 2.0
    assert deadlines.due(1.999) == []
    assert deadlines.due(2.0) == ["a"]
    assert deadlines.due(3.0) == []


def test_an_entry_is_due_up_to_a_grain_after_its_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add(2.0001, "a")
    assert deadlines.next() == 2.0 + GRAIN
    assert deadlines.due(2.0001) == []
    assert deadlines.due(2.0 + GRAIN) == ["a"]


def test_the_earliest_is_due_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add(3.0, "c")
    deadlines.add(1.0, "a")
    deadlines.add(2.0, "b")
    assert deadlines.due(5.0) == ["a", "b", "c"]


def test_those_of_one_bucket_are_due_in_the_order_they_came() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add(1.0, "b")
    deadlines.add(1.0, "a")
    assert deadlines.due(1.0) == ["b", "a"]


def test_a_discarded_entry_is_gone_at_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    bucket = deadlines.add(1.0, "a")
    deadlines.add(2.0, "b")
    deadlines.discard(bucket, "a")
    assert len(deadlines) == 1
    assert deadlines.next() == 2.0
    assert deadlines.due(5.0) == ["b"]


def test_discarding_leaves_the_others_of_a_bucket() -> None:
    deadlines: Deadlines[str] = Deadlines()
    bucket = deadlines.add(1.0, "a")
    deadlines.add(1.0, "b")
    deadlines.discard(bucket, "a")
    deadlines.discard(bucket, "a")
    assert deadlines.due(1.0) == ["b"]


def test_discarding_what_was_due_already_does_nothing() -> None:
    deadlines: Deadlines[str] = Deadlines()
    bucket = deadlines.add(1.0, "a")
    deadlines.due(1.0)
    deadlines.discard(bucket, "a")
    assert len(deadlines) == 0


def test_a_bucket_may_fill_again_after_it_emptied() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.discard(deadlines.add(1.0, "a"), "a")
    deadlines.add(1.0, "b")
    assert deadlines.due(1.0) == ["b"]
    assert deadlines.next() is None


def test_what_has_finished_leaves_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(100_000):
        deadlines.discard(deadlines.add(30.0 + number / 1000, number), number)
    assert len(deadlines._buckets) == 0
    assert len(deadlines._order) <= 66


Model = dict[int, tuple[float, int]]
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "due"]), TIMES, st.integers(0, 9)), max_size=300
)


@given(ACTIONS)
def test_it_behaves_like_a_table_that_is_looked_through(actions: list[tuple[str, float, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: Model = {}
    for action, time, entry in actions:
        match action:
            case "add" if entry not in model:
                model[entry] = (time, deadlines.add(time, entry))
            case "discard" if entry in model:
                deadlines.discard(model.pop(entry)[1], entry)
            case "due":
                wanted = {one for one, (_, bucket) in model.items() if bucket * GRAIN <= time}
                assert {one for one, (due, _) in model.items() if due <= time - GRAIN} <= wanted
                assert all(model[one][0] <= time for one in wanted)
                assert set(deadlines.due(time)) == wanted
                for one in wanted:
                    del model[one]
        assert len(deadlines) == len(model)
        soonest = min((bucket for _, bucket in model.values()), default=None)
        assert deadlines.next() == (None if soonest is None else soonest * GRAIN)
