"""`rallypoint journal`: read, check, back up and move the journal of a coordinator."""
