"""Export models to other runtimes, and run these exports.

Read `format.py` first, which says what a format is. Each other file is one format: how to write it, run it, and
recognise its folders; `registry.py` lists them.
"""
