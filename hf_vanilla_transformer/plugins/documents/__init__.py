"""Documents: which text of web pages, subtitles, Office files and e-books is translated, and where tags go.

Read `document_files.py` first, which takes the texts out of a file, with `office.py` and `subtitles.py`; `html.py`
cuts each of them into sentences, and `tagged_text.py` puts tags around the words of the translation.
"""
