"""Study models: plots, and hyperparameter tuning.

Read `plots.py` or `experiment.py` first.
"""
