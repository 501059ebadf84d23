"""What is asked of zbatch and of its peers, and what has to be reached.

A load is asked of all its contenders in turn; each row compares two of them, round by round.  Every peer of a
load gets a row, whether there is a target for it or not: if it is ahead, the table shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.loads import Setup
from benchmarks.models import gpu_seconds
from benchmarks.rows import Contender, Load, Row

ZBATCH = "ZClient"
ZBATCH_TCP = "ZClient, tcp"

ABOVE = "above"
"""A row's measure: milliseconds of a lone call above those of the direct call; the less the better."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "their ThreadedStreamer": ("service_streamer",),
    "their Streamer": ("service_streamer",),
    "their RedisStreamer": ("service_streamer", "redis"),
    "batched": ("batched",),
    "mosec (HTTP)": ("mosec",),
    "LitServe (HTTP)": ("litserve",),
    "Ray Serve (HTTP)": ("ray",),
    "PyTriton (HTTP)": ("pytriton",),
    "mosec (wrk)": ("mosec", "wrk"),
    "zbatch (wrk)": ("wrk",),
}
"""The peers, at last ours, and what each needs: environments and programs of ``environments.py``."""

THREADED, STREAMER, REDIS, BATCHED, MOSEC, LITSERVE, RAY, PYTRITON, MOSEC_BY_WRK, GATEWAY = NEEDS
PEERS = frozenset(NEEDS) - {GATEWAY}

RESTLESS = frozenset({THREADED, STREAMER, REDIS, LITSERVE})
"""Who looks for work even when there is none (LitServe's workers each millisecond): stopped by a signal while
others are measured, or it would take their time."""

OPTIONAL = {"ray": RAY, "pytriton": PYTRITON}
"""Large ones, which ``--with`` adds."""

OURS_THREADED = "our ThreadedStreamer"
OURS_STREAMER = "our Streamer"
DIRECT = "direct call"
MILLISECOND = "a millisecond"
"""What a time is compared with that has a limit of its own."""

MODULES = {
    ZBATCH: "ours",
    ZBATCH_TCP: "ours",
    OURS_THREADED: "peers.ours_threaded",
    OURS_STREAMER: "peers.ours_streamer",
    THREADED: "peers.theirs_threaded",
    STREAMER: "peers.theirs_streamer",
    REDIS: "peers.theirs_redis",
    BATCHED: "peers.batched_",
    MOSEC: "peers.mosec_",
    LITSERVE: "peers.litserve_",
    RAY: "peers.ray_",
    PYTRITON: "peers.pytriton_",
    MOSEC_BY_WRK: "peers.mosec_",
    GATEWAY: "peers.gateway_",
    DIRECT: "peers.directs",
}

HTTP = (MOSEC, LITSERVE, RAY, PYTRITON)

BY_WRK = (GATEWAY, MOSEC_BY_WRK)
"""Two fronts of HTTP, both asked by wrk."""


@dataclass(frozen=True, slots=True)
class Target:
    """What has to be reached against one peer."""

    reach: float
    aim: float | None = None


def compared(
    name: str,
    title: str,
    setup: Setup,
    ours: str,
    peers: Sequence[str],
    targets: Mapping[str, Target] | None = None,
    measure: str = "rate",
) -> Load:
    """Return a load in which one of ours is compared with each peer."""
    return Load(
        name,
        tuple(contender(one, setup) for one in (ours, *peers)),
        tuple(row(title, ours, peer, (targets or {}).get(peer), measure) for peer in peers),
    )


def contender(name: str, setup: Setup) -> Contender:
    """Return who is asked, in the way that its users ask it."""
    if name in HTTP and setup.shape != "lone":
        setup = replace(setup, shape="connections")
    if name == BATCHED and setup.shape == "window":
        setup = replace(setup, shape="threads")
    if name == ZBATCH_TCP:
        setup = replace(setup, transport="tcp")
    if name == DIRECT:
        one = setup.batch_size if setup.item == "tokens" else 1
        setup = replace(setup, shape="lone", callers=1, batch_size=one)
    return Contender(name, MODULES[name], setup)


def row(title: str, ours: str, against: str, target: Target | None, measure: str = "rate") -> Row:
    if target is None:
        return Row(title, ours, against, measure=measure)
    return Row(title, ours, against, target.reach, target.aim, measure)


def _simulated_gpu(name: str, workers: int, callers: int, peers: Sequence[str], *, full: bool) -> Load:
    """Return a load of the simulated GPU: of what is possible, and no peer ahead."""
    setup = Setup("window", callers, model="SimulatedGpu", workers=workers)
    load = compared(
        name,
        f"simulated GPU, {workers} worker{'s' * (workers > 1)}, {callers} callers",
        setup,
        ZBATCH,
        peers,
        dict.fromkeys(peers, Target(1.0)),
    )
    title = load.rows[0].title
    to_reach = Target(0.98, 0.99) if full else None
    bounds = [row(title, one, "ideal", to_reach if one == ZBATCH else None) for one in (ZBATCH, *peers)]
    return replace(load, rows=(*bounds, *load.rows), ideal=bound(workers, callers, setup.batch_size))


def bound(workers: int, callers: int, batch_size: int) -> float:
    """Return the most that callers who wait for their answers can draw from simulated GPUs.

    With few callers, fewer workers with fuller batches may do more than all of them.
    """
    rates = []
    for busy in range(1, workers + 1):
        batch = min(batch_size, callers / busy)
        rates.append(busy * batch / gpu_seconds(batch))
    return max(rates)


def _by_wrk(name: str, title: str, setup: Setup, target: Target) -> Load:
    """Return a load in which wrk asks our gateway and mosec."""
    return compared(name, title, setup, GATEWAY, (MOSEC_BY_WRK,), {MOSEC_BY_WRK: target})


def _noop_by_wrk(connections: int, target: Target) -> Load:
    title = f"HTTP, no-op, {connections} connections"
    return _by_wrk(f"wrk-{connections}", title, Setup("wrk", connections), target)


def _lone_by_wrk() -> Load:
    title = "HTTP, lone request, window of 10 ms"
    load = compared("wrk-lone", title, Setup("wrk", 1), GATEWAY, (MOSEC_BY_WRK,), measure="p50")
    return replace(load, rows=(row(title, GATEWAY, MILLISECOND, Target(0.8, 0.5), "p50"), *load.rows))


def _arrays_by_wrk() -> Load:
    setup = Setup("wrk", 16, item="picture", model="Picture", batch_size=16, max_latency=0.005)
    return _by_wrk("wrk-arrays", "HTTP, arrays of 588 KiB, 16 connections", setup, Target(0.8, 1.5))


def _gpu_by_wrk(name: str, workers: int, connections: int, *, full: bool) -> Load:
    setup = Setup("wrk", connections, model="SimulatedGpu", workers=workers)
    title = f"HTTP, simulated GPU, {workers} worker{'s' * (workers > 1)}, {connections} connections"
    load = _by_wrk(name, title, setup, Target(1.0))
    possible = Target(0.96, 0.98) if full else None
    bounds = [row(title, one, "ideal", possible if one == GATEWAY else None) for one in BY_WRK]
    return replace(load, rows=(*bounds, *load.rows), ideal=bound(workers, connections, setup.batch_size))


def _transformer(workers: int, target: Target) -> Load:
    setup = Setup("threads", 64 * workers, item="tokens", model="Transformer", batch_size=32, workers=workers)
    title = f"transformer, {workers} worker{'s' * (workers > 1)}, {setup.callers} callers"
    peers = (STREAMER, REDIS, MOSEC, LITSERVE, RAY)
    load = compared(f"transformer-{workers}", title, setup, ZBATCH, peers)
    return replace(
        load,
        # First, so that it is measured just before ours.
        contenders=(contender(DIRECT, setup), *load.contenders),
        rows=(row(title, ZBATCH, DIRECT, target), *load.rows),
    )


def _patient() -> Load:
    """Return the lone call where batches may wait for 100 ms."""
    setup = Setup("lone", 1, model="Brief", max_latency=0.1)
    title = "lone call, window of 100 ms"
    ours = (ZBATCH, ZBATCH_TCP, OURS_STREAMER, OURS_THREADED)
    peers = (THREADED, STREAMER, REDIS, BATCHED, MOSEC, LITSERVE, RAY)
    everyone = (DIRECT, *ours, *peers)
    above = [
        row(title, one, DIRECT, Target(1.0, 0.4) if one in ours else None, ABOVE) for one in everyone[1:]
    ]
    return Load(
        "lone-100ms",
        tuple(contender(one, setup) for one in everyone),
        (*above, *(row(title, ZBATCH_TCP, peer, None, "p50") for peer in peers)),
    )


def _arrays() -> Load:
    setup = Setup("threads", 16, item="picture", model="Picture", batch_size=16, max_latency=0.005)
    title = "arrays of 588 KiB, 16 callers"
    peers = (STREAMER, REDIS, MOSEC, LITSERVE, RAY)
    targets = {STREAMER: Target(3.0, 5.0), MOSEC: Target(1.2, 2.0)}
    load = compared("arrays", title, setup, ZBATCH, peers, targets)
    return replace(
        load,
        contenders=(*load.contenders, contender(ZBATCH_TCP, setup)),
        rows=(*load.rows, row(title, ZBATCH_TCP, MOSEC, None)),
    )


_WINDOW, _THREADS, _LONE = Setup("window", 128), Setup("threads", 64), Setup("lone", 1)
_PLACES = (STREAMER, REDIS, MOSEC, LITSERVE, RAY)

LOADS = (
    compared(
        "threaded-window",
        "no-op in this process, window 128",
        _WINDOW,
        OURS_THREADED,
        (THREADED,),
        {THREADED: Target(1.2, 2.0)},
    ),
    compared(
        "threaded-threads",
        "no-op in this process, 64 threads",
        _THREADS,
        OURS_THREADED,
        (THREADED, BATCHED),
        {THREADED: Target(1.1, 2.0)},
    ),
    compared(
        "streamer-window",
        "no-op, window 128, ipc",
        _WINDOW,
        ZBATCH,
        (STREAMER,),
        {STREAMER: Target(4.0, 5.0)},
    ),
    compared(
        "streamer-threads",
        "no-op, 64 threads, ipc",
        _THREADS,
        ZBATCH,
        (STREAMER,),
        {STREAMER: Target(2.8, 3.5)},
    ),
    compared(
        "redis-window",
        "no-op, window 128, tcp",
        _WINDOW,
        ZBATCH_TCP,
        (REDIS,),
        {REDIS: Target(15.0, 30.0)},
    ),
    compared("http-128", "no-op, 128 in flight, tcp against HTTP", _WINDOW, ZBATCH_TCP, HTTP),
    compared(
        "lone",
        "lone call, no-op, window of 10 ms",
        _LONE,
        ZBATCH_TCP,
        (THREADED, BATCHED, *_PLACES, PYTRITON),
        None,
        "p50",
    ),
    _patient(),
    _arrays(),
    _simulated_gpu("gpu-1", 1, 128, (THREADED, BATCHED, *_PLACES, PYTRITON), full=True),
    _simulated_gpu("gpu-8", 8, 1024, _PLACES, full=True),
    _simulated_gpu("gpu-few", 8, 128, _PLACES, full=False),
    _transformer(1, Target(0.97)),
    _transformer(2, Target(0.95)),
    _noop_by_wrk(128, Target(1.0, 1.2)),
    _noop_by_wrk(512, Target(1.1, 1.4)),
    _lone_by_wrk(),
    _arrays_by_wrk(),
    _gpu_by_wrk("wrk-gpu-1", 1, 128, full=True),
    _gpu_by_wrk("wrk-gpu-8", 8, 1024, full=True),
    _gpu_by_wrk("wrk-gpu-few-4", 4, 128, full=False),
    _gpu_by_wrk("wrk-gpu-few-8", 8, 128, full=False),
)


def missing_of(missing: Mapping[str, str]) -> dict[str, str]:
    """Return the peers that cannot be asked, by what could not be had."""
    return {
        peer: "; ".join(missing[need] for need in needs if need in missing)
        for peer, needs in NEEDS.items()
        if any(need in missing for need in needs)
    }


def without(load: Load, absent: Collection[str]) -> Load:
    """Return a load as far as it can be measured without some contenders."""
    return replace(
        load,
        contenders=tuple(one for one in load.contenders if one.name not in absent),
        rows=tuple(one for one in load.rows if not {one.ours, one.against} & set(absent)),
    )


def needs_of(loads: Sequence[Load]) -> list[str]:
    """Return the environments and programs that loads need, each once."""
    names = [need for load in loads for one in load.contenders for need in NEEDS.get(one.name, ())]
    return list(dict.fromkeys(names))
