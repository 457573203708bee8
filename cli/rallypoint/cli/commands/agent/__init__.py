"""`node-agent`: resolves its command line, and runs the agent's session with a job."""
