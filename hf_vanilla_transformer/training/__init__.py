"""Train a model as section 5 of the paper says.

Read `run.py` first, which goes from text to a model folder, then `trainer.py`.
"""
