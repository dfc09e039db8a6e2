"""Use trained models: translate, compute metrics, and run exported models on other runtimes.

Read `translation.py` first.
"""
