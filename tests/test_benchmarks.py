"""What a benchmark drives by hand works; the rest is run as a whole."""

from __future__ import annotations

from benchmarks.core_cost import BATCH, BATCHES, Cluster, Scale


def test_the_cluster_of_the_core_benchmark_is_kept_busy() -> None:
    cluster = Cluster(Scale("small", waiting=200, workers=2, clients=3))
    for _ in range(3):
        cluster.turn()
    topic = cluster.core.topics.all["default"]
    assert topic.tally.answered == 3 * BATCHES * BATCH
    assert topic.backlog.items == 200
