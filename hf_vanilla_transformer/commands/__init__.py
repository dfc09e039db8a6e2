"""The verbs of the command line, one file each: its flags and what it does.

Read `translate.py` first. Each verb imports what it needs when it runs, so that `--help` is quick.
"""
