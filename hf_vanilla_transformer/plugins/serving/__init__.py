"""The plugin `serve`: an HTTP server with LibreTranslate's API, and a page.

Read `server.py` first, which speaks HTTP, then `service.py`, which cuts texts into sentences, and `batcher.py`, which
translates the sentences of several requests together; `page.html` is one more client of it, and `process.py` runs it.
"""
