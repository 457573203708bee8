"""The coordinator's decisions, pure: (state, input, now) -> (changes, records, effects, reason).

Same arguments, same result. Nothing in this package reads a clock, draws a random number, logs or
does IO. A step returns effects; the shell carries them out after the records of the
same step are in the journal.

`step` is the one way in. The rooms, from the bottom up:

* `model`: the values, such as jobs, rounds, nodes, workers and verdicts; with keys and events, and
  the code that applies them;
* `messages`: inputs, effects, records and refusals;
* `state`: everything the coordinator knows, and a step's draft of it;
* `verdicts`: the culprit of a failure, the health of nodes, and the policy of restarts;
* `rounds`: the life of a round, its ranks, drains and fences, and the desired state of nodes;
* `sessions`: agents that connect, report, leave, or hold rounds that already run;
* `barriers`, `keys`: how workers wait for each other, and change what they share;
* `operations`: what operators ask for;
* `reads`: explanations for people;
* `memory`: what a restarted coordinator knows: notes for the journal, their replay, and the state.
"""
