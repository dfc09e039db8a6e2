"""Train models as described in section 5 of the paper.

Read `run.py` first, which goes from text to a saved model or resumes a run, then `trainer.py`. `presets.py` has the
sizes of Table 3, `arguments.py` the flags; `recipes.py` resolves them, once, into a `Recipe`, and records them.
`checkpoints.py` says whether a checkpoint is intact, and `failures.py` handles signals and losses that are not finite.
`progress.py` measures a run and reads its log: is it overfitting?
"""
