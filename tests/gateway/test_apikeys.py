"""Who may ask a gateway for what, and how often."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from zbatch.errors import ConfigError, Forbidden, Overloaded, Unauthorized
from zbatch.gateway import apikeys
from zbatch.gateway.apikeys import ApiKeys, Holder, add, hashed


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


def read(file: str) -> ApiKeys:
    keys = ApiKeys(file)
    assert keys.look()
    return keys


def test_a_key_is_shown_once_and_only_its_hash_is_kept(file: str) -> None:
    key = add(file, "alice")

    text = Path(file).read_text()
    assert key.startswith("zb_")
    assert key not in text
    assert hashed(key) in text
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_a_key_is_taken_from_either_header(file: str) -> None:
    key = add(file, "alice")
    keys = read(file)

    assert keys.holder(f"Bearer {key}", None).name == "alice"
    assert keys.holder(f"bearer  {key} ", None).name == "alice"
    assert keys.holder(None, key).name == "alice"


@pytest.mark.parametrize(
    ("authorization", "key"), [(None, None), ("", None), ("Basic eA==", None), ("Bearer", None), (None, "")]
)
def test_without_a_key_the_error_says_how_to_send_one(
    file: str, authorization: str | None, key: str | None
) -> None:
    add(file, "alice")
    with pytest.raises(Unauthorized, match="Authorization: Bearer"):
        read(file).holder(authorization, key)


@pytest.mark.parametrize("key", ["zb_x", "\udcff", "x" * 100_000])
def test_a_key_that_nobody_holds_is_refused(file: str, key: str) -> None:
    add(file, "alice")
    with pytest.raises(Unauthorized, match="nobody holds"):
        read(file).holder(None, key)


def test_the_file_says_which_topics_and_how_many_items_a_second(file: str) -> None:
    key, free = add(file, "alice", ("bert", "a b"), 2.5), add(file, "bob")
    keys = read(file)

    alice, bob = keys.holder(None, key), keys.holder(None, free)
    assert (alice.topics, alice.rate) == (frozenset({"bert", "a b"}), 2.5)
    assert (bob.topics, bob.rate) == (None, None)


def test_another_topic_is_forbidden_and_the_error_names_those_that_are_not() -> None:
    holder = Holder("alice", frozenset({"bert", "resnet"}))

    holder.admit("bert", 1, 0.0)
    with pytest.raises(Forbidden, match="not for topic 'gpt'; it is for 'bert', 'resnet'"):
        holder.admit("gpt", 1, 0.0)


def test_above_its_rate_a_key_is_told_when_to_come_back() -> None:
    holder = Holder("alice", rate=10.0)
    for _ in range(10):
        holder.admit("bert", 1, 5.0)

    with pytest.raises(Overloaded) as refused:
        holder.admit("bert", 1, 5.05)

    assert refused.value.retry_after == pytest.approx(0.05)
    holder.admit("bert", 1, 5.11)


def test_a_slow_rate_lets_one_item_in_at_a_time() -> None:
    holder = Holder("alice", rate=0.5)
    holder.admit("bert", 1, 0.0)
    with pytest.raises(Overloaded) as refused:
        holder.admit("bert", 1, 1.0)
    assert refused.value.retry_after == pytest.approx(1.0)
    holder.admit("bert", 1, 2.0)


def test_a_large_batch_is_let_in_by_a_full_measure_and_owed_for() -> None:
    holder = Holder("alice", rate=10.0)
    holder.admit("bert", 100, 0.0)

    with pytest.raises(Overloaded) as refused:
        holder.admit("bert", 1, 1.0)

    assert refused.value.retry_after == pytest.approx(8.1)


def test_what_was_refused_costs_nothing() -> None:
    holder = Holder("alice", rate=1.0)
    holder.admit("bert", 1, 0.0)
    for _ in range(50):
        with pytest.raises(Overloaded):
            holder.admit("bert", 1, 0.5)
    holder.admit("bert", 1, 1.0)


def test_a_changed_file_is_read_again_and_a_deleted_key_is_revoked(file: str) -> None:
    key, other = add(file, "alice"), add(file, "bob", ("bert",), 5.0)
    keys = read(file)
    assert not keys.look()

    text = Path(file).read_text()
    Path(file).write_text(text[text.index("[bob]") :])

    assert keys.look()
    with pytest.raises(Unauthorized):
        keys.holder(None, key)
    assert keys.holder(None, other).topics == frozenset({"bert"})


def test_a_file_that_was_copied_with_its_time_and_is_as_long_is_read_again(file: str) -> None:
    key = add(file, "alice")
    keys = read(file)
    before = os.stat(file)

    copy = Path(f"{file}.copy")
    copy.write_text(Path(file).read_text().replace(hashed(key), hashed("another")))
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    copy.replace(file)

    assert keys.look()
    with pytest.raises(Unauthorized):
        keys.holder(None, key)


def test_a_file_that_is_written_again_gives_no_new_measure(file: str) -> None:
    key = add(file, "alice", rate=1.0)
    keys = read(file)
    keys.holder(None, key).admit("bert", 1, 0.0)

    add(file, "bob")
    assert keys.look()

    with pytest.raises(Overloaded):
        keys.holder(None, key).admit("bert", 1, 0.1)


def test_a_file_that_went_wrong_is_told_and_who_held_a_key_still_does(file: str) -> None:
    key = add(file, "alice")
    keys = read(file)

    Path(file).write_text("[alice")

    with pytest.raises(ConfigError, match="no valid TOML"):
        keys.look()
    assert keys.holder(None, key).name == "alice"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("alice = 5", "wanted a table"),
        ("[alice]\nkey = 'x'", "has 'key'; wanted sha256, topics, rate"),
        ("[alice]", "wanted 64 hexadecimal digits, got None"),
        ("[alice]\nsha256 = 'x'", "wanted 64 hexadecimal digits"),
        (f"[alice]\nsha256 = '{'a' * 64}'\nrate = 0", "above 0"),
        (f"[alice]\nsha256 = '{'a' * 64}'\nrate = 'fast'", "wanted a number"),
        (f"[alice]\nsha256 = '{'a' * 64}'\ntopics = [5]", "wanted a string"),
        (f"[alice]\nsha256 = '{'a' * 64}'\n[bob]\nsha256 = '{'a' * 64}'", "same key as"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(file: str, text: str, sentence: str) -> None:
    Path(file).write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        ApiKeys(file).look()


def test_a_pipe_and_what_is_far_too_long_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "long").open("wb") as stream:
        stream.truncate(apikeys.MOST_BYTES + 1)
    for name in ("pipe", "long"):
        with pytest.raises(ConfigError, match=rf"{name} are no file of at most 4194304 bytes"):
            ApiKeys(str(tmp_path / name)).look()


def test_a_file_that_is_not_there_is_named(file: str) -> None:
    with pytest.raises(ConfigError, match=r"keys\.toml cannot be read"):
        ApiKeys(file).look()


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65])
def test_a_name_that_is_none_is_refused(file: str, name: str) -> None:
    with pytest.raises(ConfigError, match="a holder's name"):
        add(file, name)


def test_a_name_has_one_key(file: str) -> None:
    add(file, "alice")
    with pytest.raises(ConfigError, match="has a key of alice already"):
        add(file, "alice")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        add(str(tmp_path / "no" / "keys.toml"), "alice")
