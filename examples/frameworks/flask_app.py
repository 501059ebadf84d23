"""Flask: one client for the process, made beside the app.

flask --app examples/frameworks/flask_app.py run --port 8000
gunicorn --workers 4 --threads 16 examples.frameworks.flask_app:app
"""

from typing import Any

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue

from zbatch import ZbatchError, ZClient

app = Flask(__name__)
client = ZClient[Any, Any](timeout=5.0)  # the broker is $ZBATCH_BROKER; it need not be there yet


@app.post("/predict/<topic>")
def predict(topic: str) -> ResponseReturnValue:
    """Answer for one item."""
    return jsonify(client.predict_one(request.get_json(), topic=topic))


@app.get("/ping")
def ping() -> str:
    """Say that this process serves."""
    return "pong"


@app.errorhandler(ZbatchError)
def failed(error: ZbatchError) -> ResponseReturnValue:
    """Give each error its status."""
    return {"error": str(error), "code": error.code}, error.http_status, error.http_headers
