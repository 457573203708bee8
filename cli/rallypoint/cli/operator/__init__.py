"""What operators do with a coordinator: look at jobs, change them, and find out what is wrong.

A client like any other: it knows the contract and imports neither server, agent nor torch. A
command is a function in one of the packages beside this module, and a row in `table.py`.
"""
