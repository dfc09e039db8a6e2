"""The plugin `import`: spreadsheets, translation memories and catalogues become parallel text.

Read `importing.py` first; `exchange.py` reads each file in a process of its own, and `import_text.py` is the verb.
"""
