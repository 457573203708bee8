"""Journals apart from their stores: all of them at once, their check, and their form as JSON lines.

contents.py    what a store holds: one journal, or one for each shard
lines.py       the file that `rallypoint journal export` writes and `import` reads
places.py      reads the contents of a store, also beside coordinators, and fills a new one
sqlite.py      does so with a file
etcd.py        does so with etcd
conversion.py  makes the journals of shards from one journal
verify.py      what a coordinator would restore, and what is wrong with it
show.py        records for a reader: one job's, without secrets
"""
