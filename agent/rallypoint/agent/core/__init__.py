"""The agent's decisions, pure: (state, input, now) -> (state, effects).

Level-triggered: the agent keeps the newest desired state, and after every input acts to bring the
node closer to it. So it does not matter which message was lost, repeated or late.
"""
