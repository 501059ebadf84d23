"""FastAPI: one client for the event loop, made and closed by the lifespan.

uvicorn --workers 4 --port 8000 examples.frameworks.fastapi_app:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from zbatch import AsyncZClient, ZbatchError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have a client for as long as this process serves."""
    async with AsyncZClient[Any, Any](timeout=5.0) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict/{topic}")
async def predict(topic: str, item: Annotated[Any, Body()]) -> Any:
    """Answer for one item."""
    return await app.state.client.predict_one(item, topic=topic)


@app.get("/ping", response_class=PlainTextResponse)
async def ping() -> str:
    """Say that this process serves."""
    return "pong"


@app.exception_handler(ZbatchError)
async def failed(request: Request, error: ZbatchError) -> JSONResponse:
    """Give each error its status."""
    return JSONResponse({"error": str(error), "code": error.code}, error.http_status, error.http_headers)
