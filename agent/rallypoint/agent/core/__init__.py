"""The agent's decisions, pure: (state, input, now) -> (state, effects).

Level-triggered: the newest desired state is kept, and after every input the agent does whatever
brings the node closer to it. So it does not matter which message was lost, repeated or late.
"""
