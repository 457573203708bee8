"""A worker that fails inside torch's own `record`."""

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    raise ValueError("the recorded reason")


main()
