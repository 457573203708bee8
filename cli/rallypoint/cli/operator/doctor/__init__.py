"""`rallypoint doctor`: a module for each thing that can be wrong, with its probes and its checks.

Probes have time limits. Checks judge what they found, without IO.
"""
