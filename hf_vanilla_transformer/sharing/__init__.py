"""Share models: the card, the upload to the Hub, conversion to and from other classes, and exports.

Read `hub.py` first.
"""
