"""A coordinator that an agent starts for its job: who hosts it, its process, and its folder.

decision.py   whether this host is the one that an endpoint names; pure
facts.py      what the resolver and the kernel say about that
folder.py     where the journal and the log are; what an earlier coordinator has left there
protection.py what protects it; whether the nodes will accept its certificate
process.py    starts it, as a process that outlives the agent
probe.py      what listens at the endpoint
keeper.py     sees to it that a coordinator listens there, before each attempt to connect
"""
