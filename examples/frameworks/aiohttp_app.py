"""aiohttp: one client for the event loop, made and closed by a cleanup context.

python examples/frameworks/aiohttp_app.py 8000
gunicorn --workers 4 --worker-class aiohttp.GunicornWebWorker examples.frameworks.aiohttp_app:app
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from zbatch import AsyncZClient, ZbatchError

CLIENT = web.AppKey("client", AsyncZClient[Any, Any])


async def connected(app: web.Application) -> AsyncIterator[None]:
    """Have a client for as long as this process serves."""
    async with AsyncZClient[Any, Any](timeout=5.0) as app[CLIENT]:
        yield


async def predict(request: web.Request) -> web.Response:
    """Answer for one item."""
    item = await request.json()
    output = await request.app[CLIENT].predict_one(item, topic=request.match_info["topic"])
    return web.json_response(output)


async def ping(request: web.Request) -> web.Response:
    """Say that this process serves."""
    return web.Response(text="pong")


@web.middleware
async def failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give each error its status."""
    try:
        return await handler(request)
    except ZbatchError as error:
        body = {"error": str(error), "code": error.code}
        return web.json_response(body, status=error.http_status, headers=error.http_headers)


app = web.Application(middlewares=[failures])
app.cleanup_ctx.append(connected)
app.add_routes([web.post("/predict/{topic}", predict), web.get("/ping", ping)])

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
