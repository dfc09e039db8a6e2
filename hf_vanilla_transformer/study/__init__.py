"""Study models: pictures, comparisons of two systems, and searches for better settings.

Read `plots.py` or `tuning.py` first.
"""
