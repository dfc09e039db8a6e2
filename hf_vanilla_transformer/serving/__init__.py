"""Serve models: a page in the browser, and an HTTP server with LibreTranslate's API.

Read `page.py` first for the page. For the server, read `server.py`, which speaks HTTP, then `service.py`, which cuts
texts into sentences, and `batcher.py`, which translates the sentences of several requests together; `process.py` adds
the page to the API and runs both.
"""
