"""Tornado: one client for the event loop, around the server.

python examples/frameworks/tornado_app.py 8000    # as often as you want processes: they share the port
"""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from zbatch import AsyncZClient, ZbatchError


class Predict(RequestHandler):
    """Answers for one item."""

    def prepare(self) -> None:
        """Be known as open until the answer is out."""
        task: Any = asyncio.current_task()
        self.settings["requests"].add(task)
        task.add_done_callback(self.settings["requests"].discard)

    async def post(self, topic: str) -> None:
        """Await the output: meanwhile the loop serves others."""
        item = json.loads(self.request.body)
        output = await self.settings["client"].predict_one(item, topic=topic)
        self.set_header("Content-Type", "application/json")
        with suppress(StreamClosedError):  # the caller has left
            await self.finish(json.dumps(output))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Give each error its status; others than those of zbatch are Tornado's."""
        _, error, _ = kwargs.get("exc_info", (None, None, None))
        if not isinstance(error, ZbatchError):
            super().write_error(status_code, **kwargs)
            return
        self.set_status(error.http_status)
        for name, value in error.http_headers.items():
            self.set_header(name, value)
        self.finish({"error": str(error), "code": error.code})


class Ping(RequestHandler):
    """Says that this process serves."""

    def get(self) -> None:
        """Answer at once."""
        self.finish("pong")


async def main(port: int) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    requests: set[asyncio.Task[None]] = set()
    async with AsyncZClient[Any, Any](timeout=5.0) as client:
        routes = [("/predict/(.+)", Predict), ("/ping", Ping)]
        server = HTTPServer(Application(routes, client=client, requests=requests))
        server.add_sockets(bind_sockets(port, "127.0.0.1", reuse_port=True))
        await ends.wait()
        server.stop()
        if requests:
            await asyncio.wait(requests, timeout=10.0)
        await server.close_all_connections()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
