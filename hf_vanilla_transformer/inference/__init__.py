"""Use trained models: translate, compute metrics, combine models.

Read `translator.py` first: everything that translates goes through it.
"""
