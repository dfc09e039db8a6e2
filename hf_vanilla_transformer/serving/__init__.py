"""Serve a model: the demo page in the browser.

Read `page.py` first.
"""
