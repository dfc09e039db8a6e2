"""Train models as described in section 5 of the paper.

Read `run.py` first, which goes from text to a saved model, then `trainer.py`. `presets.py` has the sizes of Table 3,
`arguments.py` the flags, `recipes.py` their parsing; `settings.py` decides which settings may change when a run is
resumed, `checkpoints.py` whether a checkpoint is intact, and `safeguards.py` handles signals and failures.
`progress.py` reads the log: is the run overfitting?
"""
