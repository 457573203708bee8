"""`rallypoint doctor`: what keeps this host from the coordinator, and what to do about it.

`probes` finds facts, `checks` judges them without any IO, `examine` goes from one to the next.
"""
