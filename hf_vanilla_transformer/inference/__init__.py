"""Use trained models: translate, compute metrics, combine models.

Read `translator.py` first: everything that translates goes through it, with a model in torch or any other `Runtime`
of `runtime.py`. `exports.py` finds the runtime of an export.
"""
