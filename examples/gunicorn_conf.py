"""How gunicorn runs ``gunicorn_example``: two processes, and threads that wait for the model."""

bind = "127.0.0.1:5005"
workers = 2
threads = 64
worker_class = "gthread"
