"""Work through text of any size in tasks that run in any order, on one machine or many, and resume.

Read `runner.py` first, which runs tasks, and `job_folder.py`, which knows the finished ones. `preparation.py` turns
parallel text into shards for training, by the tasks of `pieces.py`; `corpus_translation.py` translates files, cut by
`spans.py`.
"""
