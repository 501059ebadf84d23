"""The same web server, with the model in processes of its own, on as many GPUs as there are.

    python examples/flask_multigpu_example.py 4 0,1,2,3    # 4 model processes on 4 GPUs

On a machine without GPUs, a warning says so, and they share the CPU.
"""

from __future__ import annotations

import sys

from flask import Flask, Response, jsonify, request

from examples.bert_model import ManagedBertModel
from zbatch import Streamer

app = Flask(__name__)
streamer: Streamer


@app.post("/stream")
def stream() -> Response:
    """Answer with a word for each sentence."""
    return jsonify(streamer.predict(request.form.getlist("s")))


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    devices = sys.argv[2] if len(sys.argv) > 2 else "0"
    streamer = Streamer(
        ManagedBertModel,
        batch_size=64,
        max_latency=0.1,
        worker_num=workers,
        cuda_devices=devices,
        wait_for_worker_ready=True,
        worker_timeout=120,
    )
    app.run(port=5005)
