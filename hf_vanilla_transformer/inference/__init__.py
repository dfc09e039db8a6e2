"""Use trained models: translate, compute metrics, combine models.

Read `translation.py` first.
"""
