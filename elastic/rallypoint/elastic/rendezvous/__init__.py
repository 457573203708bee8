"""How the nodes of a job meet, with the coordinator behind the names of torch."""
