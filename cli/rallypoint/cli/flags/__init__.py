"""Command lines and variables: the flags as data, and the parser that reads them."""
