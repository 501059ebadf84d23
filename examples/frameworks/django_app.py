"""Django in one file: one client for the process, a middleware for its errors.

gunicorn --workers 4 --threads 16 examples.frameworks.django_app:application
"""

import json
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from zbatch import ZbatchError, ZClient

client = ZClient[Any, Any](timeout=5.0)  # in a project: beside the views that use it


def predict(request: HttpRequest, topic: str) -> HttpResponse:
    """Answer for one item."""
    return JsonResponse(client.predict_one(json.loads(request.body), topic=topic), safe=False)


def ping(request: HttpRequest) -> HttpResponse:
    """Say that this process serves."""
    return HttpResponse("pong")


class Failures:
    """Gives each error its status; named in MIDDLEWARE."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass it on."""
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer for an error of zbatch; others are Django's."""
        if not isinstance(error, ZbatchError):
            return None
        body = {"error": str(error), "code": error.code}
        return JsonResponse(body, status=error.http_status, headers=error.http_headers)


urlpatterns = [path("predict/<str:topic>", predict), path("ping", ping)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=[f"{__name__}.Failures"])
application = get_wsgi_application()
