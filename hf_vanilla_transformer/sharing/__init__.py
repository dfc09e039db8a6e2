"""Share models: model cards, uploads to the Hub, conversion to and from other classes.

Read `hub.py` first.
"""
