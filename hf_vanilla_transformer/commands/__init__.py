"""The verbs of the command line: one file per verb, with its flags and its implementation.

Read `translate.py` first. Verbs import slow modules only when they run, so that `--help` is fast.
"""
