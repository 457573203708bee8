"""Flags that come from the environment: PET_ and the name, below the command line."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.base.values import BadValue
from rallypoint.cli.commands.agent.command import build_parser
from rallypoint.cli.commands.coordinator import build_parser as build_coordinator_parser
from rallypoint.cli.flags.flag import Group


@pytest.mark.parametrize(
    ("line", "variables", "name", "value"),
    [
        ("a", "", "nnodes", (1, 1)),
        ("a", "PET_NNODES=2:4", "nnodes", (2, 4)),
        ("--nnodes 3 a", "PET_NNODES=2:4", "nnodes", (3, 3)),
        ("--nn 3 a", "PET_NNODES=nonsense", "nnodes", (3, 3)),
        ("a --nnodes 3", "PET_NNODES=2:4", "nnodes", (2, 4)),
        ("a", "PET_NNODES=", "nnodes", (1, 1)),
        ("a", "NNODES=2", "nnodes", (1, 1)),
        ("a", "pet_nnodes=2", "nnodes", (1, 1)),
        ("a", "PET_ROLE=trainer", "role", "trainer"),
        ("a", "PET_NODE_RANK=0", "node_rank", 0),
        ("a", "PET_LEASE=7.5", "lease", 7500),
        ("a", "PET_RDZV_CONF=timeout=3", "rdzv_conf", {"timeout": "3"}),
        ("a", "PET_STANDALONE=1", "standalone", True),
        ("a", "PET_STANDALONE=Yes", "standalone", True),
        ("a", "PET_STANDALONE=true", "standalone", True),
        ("a", "PET_STANDALONE=0", "standalone", False),
        ("a", "PET_STANDALONE=no", "standalone", False),
        ("a", "PET_STANDALONE=", "standalone", False),
        ("--standalone a", "PET_STANDALONE=0", "standalone", True),
        ("a", "PET_M=1", "module", False),
        ("a", "RALLYPOINT_LOG_FORMAT=json", "log_format", "json"),
        ("a", "RALLYPOINT_LOG_FORMAT=", "log_format", "text"),
        ("a", "RALLYPOINT_LOG_FORMAT=json PET_LOG_FORMAT=text", "log_format", "text"),
        ("--log-format=text a", "RALLYPOINT_LOG_FORMAT=json", "log_format", "text"),
        ("a", "PET_MODULE=1", "module", True),
        ("a", "PET_NO_GROW=1", "no_grow", True),
        ("a", "PET_LABEL=rack=1,", "label", [("rack", "1")]),
        ("a", "PET_LABEL=rack=1,row=b=c", "label", [("rack", "1"), ("row", "b=c")]),
        ("--label x=y --label z= a", "PET_LABEL=rack=1", "label", [("x", "y"), ("z", "")]),
        ("a", "PET_VERSION=1 PET_HELP=1 PET_SCRIPT=b", "script", "a"),
        ("a", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", "shutdown_timeout", 7000),
        ("a", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=", "shutdown_timeout", 30_000),
        (
            "a",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7 PET_SHUTDOWN_TIMEOUT=8",
            "shutdown_timeout",
            8000,
        ),
        ("--shutdown 9 a", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", "shutdown_timeout", 9000),
        ("a", "LOGLEVEL=WARNING", "log_level", "warning"),
        ("a", "LOGLEVEL=critical", "log_level", "error"),
        ("a", "LOGLEVEL=17", "log_level", "info"),
        ("a", "LOGLEVEL=DEBUG PET_LOG_LEVEL=error", "log_level", "error"),
        ("--log-level=info a", "LOGLEVEL=DEBUG", "log_level", "info"),
    ],
)
def test_value_of_a_flag(line: str, variables: str, name: str, value: object) -> None:
    """The command line's, else the variable's, else the default."""
    environment = dict(text.split("=", 1) for text in variables.split())
    args = build_parser().read(line.split(), environment)

    assert getattr(args, name) == value


def test_every_flag_has_a_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """Each long name of each flag, ours and torchrun's, except for those that only print."""
    parser = build_parser()
    flags = [flag for flag in parser.flags() if not flag.prints]
    assert len(flags) > 30
    for flag in flags:
        picky = replace(parser, groups=(Group("", (replace(flag, parse=refuse),)),))
        variable = f"PET_{flag.name[2:].replace('-', '_').upper()}"
        with pytest.raises(SystemExit):
            (parser if flag.is_switch else picky).read(["a"], {variable: "?"})

        assert capsys.readouterr().err.startswith(f"node-agent: error: {variable}: ")


def refuse(text: str) -> str:
    raise BadValue(repr(text))


def test_coordinator_reads_the_shared_variable_only() -> None:
    """PET_ variables configure an agent, even where a coordinator runs beside it."""
    variables = {"PET_PORT": "7", "LOGLEVEL": "ERROR", "RALLYPOINT_LOG_FORMAT": "json"}
    args = build_coordinator_parser().read([], variables)

    assert (args.port, args.log_level, args.log_format) == (50_051, "info", "json")


def test_what_was_given_is_known() -> None:
    """The flag or variable of every value that is not a default."""
    environment = {"PET_ROLE": "x", "LOGLEVEL": "INFO", "PET_NNODES": ""}
    args = build_parser().read(
        ["--last-call", "5", "-m", "--no_grow", "a", "--role=y"], environment
    )

    assert args.given == {
        "last_call": "--last-call",
        "module": "--module",
        "no_grow": "--no-grow",
        "log_level": "LOGLEVEL",
        "role": "PET_ROLE",
    }
