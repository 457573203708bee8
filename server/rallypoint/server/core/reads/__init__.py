"""Views that readers and a restarted coordinator derive from the state and the journal."""
