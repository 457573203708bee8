"""The coordinator's decisions, pure: (state, input, now) -> (changes, effects, reason).

Same arguments, same result. Nothing in this package reads a clock, draws a random number, logs, or
does IO; what has to be done comes back as effects, and the shell (`coordinator.py`) carries them
out after the records of the same step are in the journal.

`step` is the one way in. `model` holds the words, `inputs` and `effects` the two directions,
`state` the entries and how a step changes them; `sessions`, `rounds`, `failures` and `adoption`
decide; `blame` finds the culprit of a failure, from what `symptoms` says of each worker and with
what `folding` takes together; `desired` and `explain` derive what nodes are told and what people
read.
"""
