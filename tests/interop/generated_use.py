"""Asks through the client that was generated from a gateway's document; run where that client lies.

What went well is printed, a line each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))


def main(url: str) -> None:
    """Call everything."""
    from generated.api.health import ready
    from generated.api.line import predict_batch_line, predict_line
    from generated.client import Client
    from generated.models import Error, Length, Line, Point

    def line(end: Any) -> Any:
        return Line(start=Point(x=0.0, y=0.0), end=Point(x=end, y=4.0), name="a")

    client = Client(base_url=url)
    assert ready.sync_detailed(client=client).status_code == 200
    print("ready")
    assert predict_line.sync(client=client, body=line(3.0)) == Length(length=5.0, name="a")
    assert predict_line.sync(client=client, body=line(3.0), timeout="5s", priority=1) is not None
    print("one item")
    assert predict_batch_line.sync(client=client, body=[line(3.0), line(0.0)]) == [
        Length(length=5.0, name="a"),
        Length(length=4.0, name="a"),
    ]
    print("several items")
    refused = predict_line.sync_detailed(client=client, body=line("far"))
    assert isinstance(refused.parsed, Error)
    assert (refused.status_code, refused.parsed.error) == (422, "$.end.x: expected float, got str")
    print("a refusal with its path")


if __name__ == "__main__":
    main(sys.argv[1])
