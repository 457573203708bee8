"""What commands show, as text and tables: pure functions of the coordinator's answers."""
