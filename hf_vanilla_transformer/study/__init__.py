"""Study models: plots, comparisons of two systems, and hyperparameter tuning.

Read `plots.py` or `experiment.py` first.
"""
