"""The page on which people read a gateway's OpenAPI document and try its calls: Swagger UI, from this host.

Nothing is loaded from elsewhere, so it works where there is no network.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import NamedTuple

from zbatch.errors import ConfigError
from zbatch.gateway.answers import NoSuchPath

LIBRARY = "swagger_ui"

KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}

FILES = ("swagger-ui-bundle.js", "swagger-ui.css")


class File(NamedTuple):
    """A file to send."""

    kind: str
    data: bytes


PAGE = File(
    "text/html; charset=utf-8",
    b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><title>zbatch</title><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#page"})</script>
</body>
</html>
""",
)
"""Its addresses are relative: it may stand behind a proxy, under another path."""


@cache
def file(name: str) -> File:
    """Return a file of the page.

    Raises :class:`NoSuchPath` for another name, :class:`ConfigError` where the library is not installed.
    """
    if name not in FILES:
        raise NoSuchPath(f"there is no {name[:100]!r}; wanted one of {', '.join(FILES)}")
    try:
        data = (resources.files(LIBRARY) / "static" / name).read_bytes()
    except ModuleNotFoundError:
        raise ConfigError("the page of the docs needs swagger-ui-py; install zbatch[http]") from None
    return File(KINDS[name.rpartition(".")[2]], data)
