"""Keys lie where they are looked for, readable to their owner only, and what is wrong gets a sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq

from zbatch.core.links import Identity
from zbatch.errors import ConfigError
from zbatch.security import Allowed, AllowList, add, make_farm, of_broker, own


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    folder = tmp_path / "farm"
    make_farm(folder)
    return folder


def touch(path: Path, text: str) -> None:
    """Write a file whose state differs from the one before."""
    path.unlink(missing_ok=True)
    path.write_text(text)


def looked(farm: Path) -> Allowed:
    """Return who is allowed at a first look."""
    found = AllowList(farm).look()
    assert found is not None
    return found


def test_a_farm_has_a_key_for_the_broker_and_one_for_each_role(farm: Path) -> None:
    names = sorted(str(path.relative_to(farm)) for path in farm.rglob("*") if path.is_file())
    assert names == [
        "admin.key_secret",
        "allowed/admin/admin.key",
        "allowed/client/client.key",
        "allowed/worker/worker.key",
        "broker.key",
        "broker.key_secret",
        "client.key_secret",
        "worker.key_secret",
    ]


def test_nobody_else_can_read_what_was_made(farm: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [farm, *farm.rglob("*")]}
    assert modes <= {0o700, 0o600}


def test_a_farm_is_not_made_twice(farm: Path) -> None:
    before = (farm / "broker.key_secret").read_bytes()
    with pytest.raises(ConfigError, match=r"has a broker's key; nothing was changed"):
        make_farm(farm)
    assert (farm / "broker.key_secret").read_bytes() == before


def test_each_side_finds_its_own_key_and_the_brokers(farm: Path) -> None:
    broker = of_broker(farm)
    client, worker = own(farm, "client"), own(farm, "worker")
    assert client.server == worker.server == broker.public
    assert len({client.public, worker.public, broker.public}) == 3
    for keys in (broker, client, worker):
        assert zmq.curve_public(keys.secret) == keys.public


def test_a_secret_shows_in_no_text(farm: Path) -> None:
    keys = own(farm, "client")
    assert keys.secret.decode() not in repr(keys)


def test_of_several_roles_the_first_that_is_there_is_used(farm: Path) -> None:
    admin = own(farm, "admin")
    (farm / "client.key_secret").unlink()
    assert own(farm, "client", "admin") == admin


def test_a_key_of_ones_own_lies_in_a_folder_to_copy(farm: Path) -> None:
    home = add(farm, "client", "alice")
    assert sorted(path.name for path in home.iterdir()) == ["broker.key", "client.key_secret"]
    keys = own(home, "client")
    assert keys.server == of_broker(farm).public
    assert looked(farm).by_key[keys.public] == Identity(keys.public, "client", "alice")


@pytest.mark.parametrize(
    ("role", "name", "sentence"),
    [
        ("king", "alice", "wanted a role"),
        ("client", "../alice", "wanted a name of letters"),
        ("client", "", "wanted a name of letters"),
        ("client", "a" * 65, "at most 64 characters"),
        ("client", "client", "has a 'client' already"),
    ],
)
def test_what_cannot_be_added_gets_a_sentence(farm: Path, role: str, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        add(farm, role, name)


def test_without_a_farm_nothing_can_be_added(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="zbatch keys new"):
        add(tmp_path, "client", "alice")


def test_a_secret_that_others_can_read_is_refused(farm: Path) -> None:
    secret = farm / "client.key_secret"
    secret.chmod(0o640)
    with pytest.raises(ConfigError, match=r"can be read by others \(mode 640\); say `chmod 600"):
        own(farm, "client")


def test_a_folder_without_the_key_says_which_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no client.key_secret or admin.key_secret"):
        own(tmp_path, "client", "admin")
    with pytest.raises(ConfigError, match=r"has no broker.key_secret"):
        of_broker(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", 'curve\n    public-key = "short"\n', "nonsense", 'curve\n    public-key = "' + "\\" * 40 + '"\n'],
)
def test_a_public_key_that_is_none_gets_a_sentence(farm: Path, text: str) -> None:
    touch(farm / "broker.key", text)
    with pytest.raises(ConfigError, match=r"broker.key: (no public key can be read|wanted a public key)"):
        own(farm, "client")


def test_a_public_key_under_a_secrets_name_gets_a_sentence(farm: Path) -> None:
    secret = farm / "client.key_secret"
    secret.write_text((farm / "broker.key").read_text())
    with pytest.raises(ConfigError, match="has no secret key"):
        own(farm, "client")


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="keys cannot be written"):
        make_farm(tmp_path / "file" / "farm")


# --- who may come in -----------------------------------------------------------------------------


def test_who_is_allowed_is_read_again_when_a_file_comes_or_goes(farm: Path) -> None:
    listed = AllowList(farm)
    first = listed.look()
    assert first is not None
    assert listed.look() is None
    alice = own(add(farm, "client", "alice"), "client")
    second = listed.look()
    assert second is not None
    assert second.by_key.keys() - first.by_key.keys() == {alice.public}
    (farm / "allowed" / "client" / "alice.key").unlink()
    assert listed.look() == first


def test_a_file_that_is_no_key_lets_nobody_in_and_is_named(farm: Path) -> None:
    listed = AllowList(farm)
    listed.look()
    touch(farm / "allowed" / "client" / "client.key", "garbage")
    allowed = listed.look()
    assert allowed is not None
    assert own(farm, "client").public not in allowed.by_key
    assert [sentence.partition(":")[0].rpartition("/")[2] for sentence in allowed.refused] == ["client.key"]


def test_what_is_no_small_file_is_not_opened_and_lets_nobody_in(farm: Path) -> None:
    folder = farm / "allowed" / "client"
    os.mkfifo(folder / "fifo.key")
    (folder / "folder.key").mkdir()
    (folder / "device.key").symlink_to("/dev/zero")
    with (folder / "huge.key").open("wb") as huge:
        huge.truncate(1 << 40)
    (folder / "link.key").symlink_to(add(farm, "client", "alice").parent / "allowed" / "client" / "alice.key")
    allowed = looked(farm)
    assert sorted(sentence.rpartition("/")[2] for sentence in allowed.refused) == [
        "device.key: no public key can be read: it is no file",
        "fifo.key: no public key can be read: it is no file",
        "folder.key: no public key can be read: it is no file",
        "huge.key: no public key can be read: it has 1099511627776 bytes, at most 65536 are read",
    ]
    assert own(farm / "alice", "client").public in allowed.by_key


def test_of_a_key_in_two_places_the_weaker_role_counts(farm: Path) -> None:
    worker = own(farm, "worker")
    text = (farm / "allowed" / "worker" / "worker.key").read_text()
    (farm / "allowed" / "admin" / "too.key").write_text(text)
    assert looked(farm).by_key[worker.public].role == "worker"


def test_without_a_folder_nobody_is_allowed(tmp_path: Path) -> None:
    assert AllowList(tmp_path).look() is None
    assert Allowed() == Allowed({}, ())
