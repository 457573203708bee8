"""Run the `train` of a program of this folder on two workers, from Python.

python from_python.py lightning_trainer
"""

from __future__ import annotations

import importlib
import sys

from rallypoint.elastic import LaunchConfig, elastic_launch


def main() -> None:
    train = importlib.import_module(sys.argv[1]).train
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=0)
    elastic_launch(config, train)()


if __name__ == "__main__":  # workers import this module, too
    main()
