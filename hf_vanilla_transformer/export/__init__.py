"""Export models to other runtimes, and run these exports.

Each file is one format: how to write it, run it, and recognise its folders. Read `ctranslate2.py` first.
"""
