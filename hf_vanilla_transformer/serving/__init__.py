"""Serve models: an HTTP server with LibreTranslate's API and a page, and the page of `demo`.

For the server, read `server.py` first, which speaks HTTP, then `service.py`, which cuts texts into sentences, and
`batcher.py`, which translates the sentences of several requests together; `page.html` is one more client of it, and
`process.py` runs it. `explorer.py` is the page of `demo`, with Gradio.
"""
