"""The model behind Flask: naively, and with three more lines that gather what its threads ask for.

Flask answers each request in a thread.  ``/naive`` runs the model once for each of them; ``/stream`` runs it
once for all who ask at the same time.
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request

from examples.bert_model import TextInfillingModel
from zbatch import ThreadedStreamer

app = Flask(__name__)
model = TextInfillingModel()
streamer = ThreadedStreamer(model.predict, batch_size=64, max_latency=0.1)


@app.post("/naive")
def naive() -> Response:
    """Answer with a word for each sentence."""
    return jsonify(model.predict(request.form.getlist("s")))


@app.post("/stream")
def stream() -> Response:
    """Answer the same."""
    return jsonify(streamer.predict(request.form.getlist("s")))


if __name__ == "__main__":
    app.run(port=5005)
