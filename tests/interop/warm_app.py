"""The Flask example, its client used before gunicorn forks: once to the end, once left open."""

from examples.frameworks.flask_app import app, client

__all__ = ["app"]

client.predict_one({"text": "warm"}, topic="shout")
client.submit([{"text": "open"}], topic="shout")
