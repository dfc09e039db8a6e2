"""Use trained models: translate, score, and run exports on other runtimes.

Read `translation.py` first.
"""
