"""What a restarted coordinator knows: notes for the journal, their replay, and the state."""
