"""gunicorn's settings for gevent workers: patch before anything is imported, also with --preload.

gunicorn --config examples/frameworks/gunicorn_gevent.py examples.frameworks.flask_app:app
"""

from gevent import monkey

monkey.patch_all()

worker_class = "gevent"
workers = 4
