"""A process whose threads are greenlets, as gevent's patch makes them: run by ``test_gevent.py``."""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402

import zbatch  # noqa: E402
from zbatch import Cancelled, DeadlineExceeded, ThreadedStreamer, ZClient  # noqa: E402

MANY = 50


class Others:
    """Counts how often other greenlets had their turn."""

    def __init__(self) -> None:
        self.turns = 0
        gevent.spawn(self._count)

    def _count(self) -> None:
        while True:
            self.turns += 1
            gevent.sleep(0.001)

    def get_turns(self) -> None:
        """Wait until they had ten more; one that blocks would be waited for in vain."""
        wanted = self.turns + 10
        while self.turns < wanted:
            gevent.sleep(0.001)


def main(endpoint: str, gate: Path) -> None:
    """Go through all that could stop the hub, and say so after each."""
    others = Others()
    held = {"wait": str(gate)}
    with ZClient[Any, Any](endpoint, timeout=60) as client:
        asked = [gevent.spawn(client.predict, [number]) for number in range(200)]
        gevent.joinall(asked, raise_error=True)
        assert [one.value for one in asked] == [[number] for number in range(200)]
        print("each has its own answer")

        waiting = [gevent.spawn(client.predict, [held]) for _ in range(MANY)]
        others.get_turns()
        assert not any(one.ready() for one in waiting)
        gate.touch()
        gevent.joinall(waiting, raise_error=True)
        print("others ran while many waited")

        gate.unlink()
        alone = gevent.spawn(client.predict, [held])
        others.get_turns()
        assert not alone.ready()
        gate.touch()
        assert alone.get() == [held]
        print("others ran while one waited")

        gate.unlink()
        future = client.submit([held])
        assert future.cancel()
        try:
            future.result()
        except Cancelled:
            print("cancelled")
        try:
            client.predict([held], timeout=0.2)
        except DeadlineExceeded:
            print("the deadline passed")
        with gevent.Timeout(0.2, False):
            client.predict([held])
        gate.touch()
        assert client.predict(["after"]) == ["after"]
        print("a timeout of gevent's ended one call and no other")

        told: list[Any] = []
        client.submit(["told"]).add_done_callback(lambda future: told.append(future.result()))
        while not told:
            others.get_turns()
        assert told == [["told"]]
        assert list(client.map(range(100), window=10)) == list(range(100))
        print("callbacks and map")

        child = os.fork()
        if not child:
            os._exit(0 if client.predict(["child"]) == ["child"] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.predict(["parent"]) == ["parent"]
        print("a forked child asks for itself")
    print("closed")
    with zbatch.local(lambda batch: [item * 2 for item in batch], batch_size=8) as local:
        doubled = [gevent.spawn(local.predict, [number]) for number in range(MANY)]
        gevent.joinall(doubled, raise_error=True)
        assert [one.value for one in doubled] == [[number * 2] for number in range(MANY)]
    streamer = ThreadedStreamer(lambda batch: batch, 8)
    assert streamer.predict([1, 2]) == [1, 2]
    streamer.destroy_workers()
    print("inside one process")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
