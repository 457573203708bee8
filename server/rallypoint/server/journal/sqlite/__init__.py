"""A journal in one SQLite file: durable when `append` returns, and checked when it is opened.

journal.py   the store: what the coordinator calls
thread.py    the thread that does all of its IO
opening.py   its files, opened together or made
file.py      the folder, the lock, and the connection
reading.py   everything that it holds, checked
pages.py     the tables, and what each transaction writes
chain.py     digests: each batch continues that of the one before
witness.py   the last batch that was acknowledged, in a second file
errors.py    one line for each way in which a disk fails
"""
