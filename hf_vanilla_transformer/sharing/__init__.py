"""Share models: model cards, uploads to the Hub, conversion to and from other classes, and exports.

Read `hub.py` first.
"""
