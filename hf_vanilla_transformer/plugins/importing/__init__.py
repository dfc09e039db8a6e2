"""The plugin `import`: spreadsheets, translation memories and catalogues become parallel text.

Read `importing.py` first; `reader_process.py` reads each file in a process of its own, with `tables.py` and
`translation_files.py`, and `import_text.py` is the verb.
"""
