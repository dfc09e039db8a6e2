"""Put a model behind an address: the page in the browser.

Read `page.py` first.
"""
