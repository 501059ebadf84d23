"""What is done to a cluster: each kind of fault, how often, and what it met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.simulator.brokers import Broker
from tests.simulator.hosts import Host
from tests.simulator.network import Connection, Dealer
from tests.simulator.processes import Process

if TYPE_CHECKING:
    from tests.simulator.lives import Life


class Faults:
    """Does harm at random times, and what it did is counted by what it met."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._world = world = life.world
        kinds: list[Callable[[], None]] = [
            self._kill_model,
            self._kill_host,
            self._drain_host,
            self._stop_model,
            self._hang_model,
            self._stop_host,
            self._kill_broker,
            self._drain_broker,
            self._stop_broker,
            self._kill_caller,
            self._close_caller,
            self._stop_caller,
            self._break,
            self._half_open,
            self._partition,
            self._idle,
        ]
        some = world.one_of((0, 1, 2, 4, len(kinds)))
        self.kinds = world.random.sample(kinds, some)
        self._rate = world.one_of((0.2, 0.5, 1.5))
        """Faults a second."""
        self._over = False
        self._blocked: list[Dealer] = []

    def begin(self) -> None:
        """Do harm from now on."""
        if self.kinds:
            self._world.after(self._world.random.expovariate(self._rate), self._next)

    def _next(self) -> None:
        if not self._over:
            self._world.one_of(self.kinds)()
            self._world.after(self._world.random.expovariate(self._rate), self._next)

    def stop(self) -> None:
        """Do no more harm, and undo what does not heal by itself."""
        self._over = True
        life = self._life
        self._world.tell("faults stop")
        for farm in life.farms.values():
            farm.crash_after = 0.0
        for dealer in self._blocked:
            self._unblock(dealer)
        for process in self._everybody():
            process.go_on()
        self._take_one_for_good()
        for broker in life.brokers:
            broker.start_again()
        for host in life.hosts:
            host.start_again()

    def _take_one_for_good(self) -> None:
        """Where there are several brokers, one may never come back, or be cut off from every worker."""
        brokers = self._life.brokers
        if len(brokers) == 1 or not self._world.maybe(0.4):
            return
        broker = self._world.one_of(brokers)
        load = self._life.checks.load_of(broker)
        if self._world.maybe(0.5):
            self._met("broker lost for good", load)
            broker.gone = True
            if broker.alive:
                broker.die()
        else:
            self._met("broker cut off from its workers", load)
            broker.router.forsake()

    def _met(self, fault: str, what: str) -> None:
        self._life.met[f"{fault} while {what}"] += 1
        self._world.tell(f"-- {fault} while {what}")

    def _everybody(self) -> list[Process]:
        life = self._life
        models = [host.model for host in life.hosts if host.model is not None]
        return [*life.brokers, *life.hosts, *life.callers, *models]

    # --- workers -----------------------------------------------------------------------------------

    def _kill_model(self) -> None:
        model = self._world.one_of(self._life.hosts).model
        if model is not None:
            self._met("model killed", model.situation)
            model.end(-9)

    def _kill_host(self) -> None:
        host = self._world.one_of(self._life.hosts)
        if host.alive:
            self._met("host killed", host.model.situation if host.model is not None else "no model")
            host.die()
            self._world.after(self._world.between(0.1, 8.0), host.start_again)

    def _drain_host(self) -> None:
        host = self._world.one_of(self._life.hosts)
        if host.alive and host.stopped is None and host.leaving is None:
            self._met("host drained", host.model.situation if host.model is not None else "no model")
            host.leave()
            self._begin_when_gone(host)

    def _begin_when_gone(self, one: Host | Broker) -> None:
        if one.alive and one.leaving is not None:
            self._world.after(self._world.between(0.1, 2.0), lambda: self._begin_when_gone(one))
        else:
            one.start_again()

    def _stop_model(self) -> None:
        model = self._world.one_of(self._life.hosts).model
        if model is not None and model.stopped is None:
            self._met("model stopped", model.situation)
            model.stop(self._span())

    def _hang_model(self) -> None:
        model = self._world.one_of(self._life.hosts).model
        if model is not None and model.stopped is None:
            self._met("interpreter held", model.situation)
            model.stop(self._span(), whole=False)

    def _stop_host(self) -> None:
        host = self._world.one_of(self._life.hosts)
        if host.alive and host.stopped is None:
            self._met("supervisor stopped", host.model.situation if host.model is not None else "no model")
            host.stop(self._span())

    # --- brokers -----------------------------------------------------------------------------------

    def _kill_broker(self) -> None:
        broker = self._world.one_of(self._life.brokers)
        if broker.alive:
            self._met("broker killed", self._life.checks.load_of(broker))
            broker.die()
            self._world.after(self._world.between(0.05, 6.0), broker.start_again)

    def _drain_broker(self) -> None:
        broker = self._world.one_of(self._life.brokers)
        if broker.alive and broker.stopped is None and broker.leaving is None:
            self._met("broker drained", self._life.checks.load_of(broker))
            broker.leave()
            self._begin_when_gone(broker)

    def _stop_broker(self) -> None:
        broker = self._world.one_of(self._life.brokers)
        if broker.alive and broker.stopped is None:
            self._met("broker stopped", self._life.checks.load_of(broker))
            broker.stop(self._span(), whole=self._world.maybe(0.7))

    # --- clients -----------------------------------------------------------------------------------

    def _kill_caller(self) -> None:
        caller = self._world.one_of(self._life.callers)
        self._met("client killed", self._waits(caller.core.open_groups))
        caller.die()
        self._life.new_caller(caller)

    def _close_caller(self) -> None:
        caller = self._world.one_of(self._life.callers)
        if caller.stopped is None:
            self._met("client closed", self._waits(caller.core.open_groups))
            caller.leave()
            self._life.new_caller(caller)

    def _stop_caller(self) -> None:
        caller = self._world.one_of(self._life.callers)
        if caller.stopped is None:
            self._met("client stopped", self._waits(caller.core.open_groups))
            caller.stop(self._span(), whole=self._world.maybe(0.7))

    def _waits(self, groups: int) -> str:
        return "something is open" if groups else "nothing is open"

    # --- the network -------------------------------------------------------------------------------

    def _dealer(self) -> tuple[str, Dealer] | None:
        life = self._life
        kinds: list[tuple[str, Sequence[Process]]] = [
            ("client", [one for one in life.callers if one.alive]),
            ("supervisor", [one for one in life.hosts if one.alive]),
            ("worker", [one.model for one in life.hosts if one.model is not None]),
        ]
        who, processes = self._world.one_of(kinds)
        if not processes:
            return None
        return who, self._world.one_of(self._world.one_of(processes).dealers)

    def _carries(self, dealer: Dealer) -> str:
        connection = dealer.connection
        if connection is None:
            return "there is none"
        up, down = bool(connection.up), bool(connection.down)
        return {
            (False, False): "it carries nothing",
            (True, False): "it carries words to the broker",
            (False, True): "it carries words from the broker",
            (True, True): "it carries words both ways",
        }[up, down]

    def _break(self) -> None:
        found = self._dealer()
        if found is not None:
            who, dealer = found
            self._met(f"connection of a {who} broken", self._carries(dealer))
            if dealer.connection is not None:
                dealer.connection.close()

    def _half_open(self) -> None:
        found = self._dealer()
        if found is not None:
            who, dealer = found
            self._met(f"connection of a {who} half open", self._carries(dealer))
            dealer.half_open()

    def _partition(self) -> None:
        """Let nothing through between some processes and some brokers, one way or both, for a while."""
        world = self._world
        up, down = world.one_of(((True, True), (True, False), (False, True)))
        direction = {(True, True): "both ways", (True, False): "to brokers", (False, True): "from brokers"}
        routers = [broker.router for broker in self._life.brokers if world.maybe(0.7)]
        cut = [
            dealer
            for process in self._everybody()
            if world.maybe(0.5)
            for dealer in process.dealers
            if dealer.router in routers and not dealer.blocked
        ]
        if cut:
            self._met("partition", direction[up, down])
        seconds = self._span()
        for dealer in cut:
            dealer.blocked = True
            dealer.stall(up=up, down=down)
            self._blocked.append(dealer)
            world.after(seconds, lambda dealer=dealer: self._unblock(dealer))  # type: ignore[misc]
            connection = dealer.connection
            world.after(10.0, lambda dealer=dealer, was=connection: self._timed_out(dealer, was))  # type: ignore[misc]

    def _timed_out(self, dealer: Dealer, connection: Connection | None) -> None:
        if dealer.blocked and connection is not None and dealer.connection is connection:
            connection.close()

    def _unblock(self, dealer: Dealer) -> None:
        if dealer.blocked:
            dealer.blocked = False
            if not dealer.asleep:
                dealer.go_on()

    def _idle(self) -> None:
        """Do nothing: some lives are quiet."""

    def _span(self) -> float:
        return self._world.one_of((0.3, 2.0, 5.0, 8.0, 13.0)) * self._world.between(0.5, 1.2)
