"""Environment variables of torch and TorchElastic that the agent sets or reads."""

SIGNALS_ENV = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""Names of the signals that the agent handles, such as SIGTERM, separated by commas."""
SERVER_ENV = "TORCH_WORKER_SERVER_SOCKET"
"""Path of the socket on which a worker serves torch's control plane."""
TIMERS_ENV = "TORCHELASTIC_TIMER_FILE"
"""Path of the FIFO through which workers set timers."""
