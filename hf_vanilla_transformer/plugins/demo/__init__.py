"""The plugin `demo`: a web page to try a model, with Gradio.

Read `gradio_page.py` first; `demo.py` is the verb that serves it, and `space.py` publishes it on the Hub.
"""
