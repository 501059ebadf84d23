"""Several web processes, and the model on other hosts: what a farm looks like, on one machine.

A web process needs no torch.  It knows one address, that of the broker (127.0.0.2 plays another host here);
batches form from what all web processes ask for.  What goes wrong has a status of its own, such as 503 where
nobody can answer now.
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request

from zbatch import ZbatchError, ZStreamer

app = Flask(__name__)
streamer = ZStreamer("127.0.0.2:7000")


@app.post("/stream")
def stream() -> Response:
    """Answer with a word for each sentence."""
    return jsonify(streamer.predict(request.form.getlist("s")))


@app.errorhandler(ZbatchError)
def refuse(error: ZbatchError) -> tuple[Response, int]:
    """Say what went wrong."""
    return jsonify(error=str(error)), error.http_status
