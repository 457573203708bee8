#!/bin/bash
# An interpreter of the user's own, for PYTHON_EXEC: it leaves a file for each start.
touch "interpreter-$RANK.txt"
exec "$PYTHON" "$@"
