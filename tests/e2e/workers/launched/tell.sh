#!/bin/bash
# A worker that is no Python program: it writes its rank and its arguments, and runs the one that is.
echo "rank $RANK of $WORLD_SIZE: $*" > "shell-$RANK.txt"
exec "$PYTHON" -u tell.py "$@"
