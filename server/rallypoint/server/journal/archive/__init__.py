"""A journal apart from its store: all of it at once, its check, and its form as JSON lines.

contents.py  what a journal holds
lines.py     the file that `rallypoint journal export` writes and `import` reads
places.py    reads the contents of a store, also beside a coordinator, and fills a new one
verify.py    what a coordinator would restore, and what is wrong with it
show.py      records for a reader: one job's, without secrets
"""
