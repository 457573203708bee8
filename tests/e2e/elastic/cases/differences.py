"""Where our API differs from torch's on purpose: the one table, with a reason for each.

A test fails for a difference that is missing here, and for one here that does not show any more.
docs/python.md lists the reasons for users.
"""

from __future__ import annotations

from support.elastic.compare import ABSENT, Difference

_LINK, _ADVICE = "To enable traceback see: *", "the worker recorded no error: *"
_NO_RECORD = "A failure without an error file has another text: what to do, instead of a link."
_WITHOUT_RECORD = (
    *("exit_with_3", "exit_with_a_text", "exit_at_once", "failing_script", "missing_script"),
    *("script_with_an_exception", "text_of_a_failed_child"),
)
_TRAITS = (
    "`errorTraits` belong to the failure that they describe; in torch all later failures without "
    "an error file have them, too."
)
_NO_VALUE = (
    "A worker that ends with code 0 without a return, as by `sys.exit()`, has returned None; torch "
    "waits for ever."
)
_NAMELESS = (
    "Any callable can be launched, such as a partial function; torch needs one with a `__name__`."
)
_BY_VALUE = (
    "With cloudpickle installed, `spawn` and `forkserver` take lambdas and nested functions; "
    "torch cannot pickle them."
)
_REFUSAL = "The texts of refusals are ours: they name the value and what is accepted."
_ENTRY_POINT = "A launch without an entry point raises `ValueError`, and not `AssertionError`."
_PRELOAD = (
    "`LaunchConfig` has `preload`, `preload_call` and `evidence`, behind the fields of torch."
)
_UNREADABLE = (
    "An error file that cannot be read, or that has no message, counts as none; torch's agent "
    "raises an error of the reader."
)
_AGENT_STORE = (
    "`TORCHELASTIC_USE_AGENT_STORE` is `False`: rank 0 hosts a fresh store in every round; with "
    "torch, the store of the agents stays, with the keys of the round before."
)
_ENDS_ALL = (
    "A failure for good ends the job on all nodes at once, and every node reports the rank that "
    "failed first; with torch the other nodes continue, and may succeed."
)
_INTERRUPT = (
    "`KeyboardInterrupt` in a function ends its worker by SIGINT, as Ctrl-C ends a program; torch "
    "waits for ever."
)
_UNPICKLABLE_VALUE = (
    "A return value that cannot be pickled is a recorded failure, which names the function."
)
_UNLOADABLE_VALUE = (
    "A return value that cannot be loaded raises `ResultUnreadable`, which names the rank."
)
_UNPICKLABLE_ARGUMENT = (
    "An argument that cannot be pickled raises `UnpicklableFunction`, a `PicklingError` which "
    "names the function and what to do."
)
_USER_SIGNAL = (
    "SIGUSR1, SIGUSR2 and other notifications are only passed on to the workers; torch ends the "
    "launch."
)
_STOPPED = (
    "Workers that the agent has stopped are no failures; torch lists them for scripts, but not "
    "for functions."
)
_AT_EXIT = (
    "Functions of `atexit` run at the end of a worker with every start method; with torch only "
    "with `spawn`."
)
_MISSING = (
    "A program that does not exist is a failure of its workers, with exit code 127, so other nodes "
    "learn it; torch raises `FileNotFoundError`."
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(_WITHOUT_RECORD, "*.message", _LINK, _ADVICE, _NO_RECORD),
    Difference(_WITHOUT_RECORD, "*text", f"*{_LINK}", f"*{_ADVICE}", _NO_RECORD),
    Difference(
        ("failures_without_error_files", "failures_of_error_files"),
        *("*.message", _LINK, _ADVICE, _NO_RECORD),
    ),
    Difference(
        ("failures_without_error_files", "text_of_a_failed_child"),
        *("*.error_file_data.errorTraits.*", "*", ABSENT, _TRAITS),
    ),
    Difference(("failing_script",), "raised.failures.1.*", "*", ABSENT, _STOPPED),
    *(
        Difference(("exit_without_a_code", "exit_at_once_with_0"), *values, _NO_VALUE)
        for values in (
            ("raised.type", "Hanging", ABSENT),
            ("raised.text", "*", ABSENT),
            ("returned.0", ABSENT, "None"),
        )
    ),
    *(
        Difference(("interrupt_by_the_function",), *values, _INTERRUPT)
        for values in (
            ("raised.type", "Hanging", "ChildFailedError"),
            ("raised.text", "*", "*Signal 2 (SIGINT) received*"),
            ("raised.name", ABSENT, "raises"),
            ("raised.first.*", ABSENT, "*"),
            ("raised.failures.0.*", ABSENT, "*"),
            ("raised.failures.0.exitcode", ABSENT, "-2"),
        )
    ),
    *(
        Difference(("partial_of_a_function", "callable_object"), *values, _NAMELESS)
        for values in (
            ("raised.type", "AttributeError", ABSENT),
            ("raised.text", "*has no attribute '__name__'", ABSENT),
            ("returned.*", ABSENT, "*5*"),
        )
    ),
    *(
        Difference(
            ("lambda_by_spawn", "lambda_by_forkserver", "nested_function_by_spawn"),
            *values,
            _BY_VALUE,
        )
        for values in (
            ("raised.type", "AttributeError", ABSENT),
            ("raised.text", "Can't pickle local object*", ABSENT),
            ("returned.*", ABSENT, "*"),
        )
    ),
    *(
        Difference(("value_that_cannot_be_pickled",), *values, _UNPICKLABLE_VALUE)
        for values in (
            ("raised.failures.0.message", _LINK, ABSENT),
            ("raised.failures.0.message.message", ABSENT, "*returned a value that cannot be*"),
            ("raised.failures.0.message.extraInfo.*", ABSENT, "*"),
            ("raised.failures.0.error_file", "<N/A>", "@logs/@run/attempt_0/0/error.json"),
            ("raised.failures.0.error_file_data.*", "*", "*"),
            ("raised.text", f"*{_LINK}", "*returned a value that cannot be pickled*"),
        )
    ),
    Difference(
        ("value_that_cannot_be_loaded",),
        *("raised.type", "ValueError", "ResultUnreadable", _UNLOADABLE_VALUE),
    ),
    Difference(
        ("value_that_cannot_be_loaded",),
        *("raised.text", "invalid literal*", "*of local rank 0 *: invalid literal*"),
        _UNLOADABLE_VALUE,
    ),
    *(
        Difference(("exception_without_a_text",), *values, why)
        for why in ("An exception whose text cannot be read is recorded all the same.",)
        for values in (
            ("raised.failures.0.message", _LINK, ABSENT),
            ("raised.failures.0.message.message", ABSENT, "Speechless: *"),
            ("raised.failures.0.message.extraInfo.*", ABSENT, "*"),
            ("raised.failures.0.error_file", "<N/A>", "@logs/@run/attempt_0/0/error.json"),
            ("raised.failures.0.error_file_data.*", "*", "*"),
            ("raised.text", f"*{_LINK}", "*Speechless: *"),
        )
    ),
    Difference(
        ("argument_that_cannot_be_pickled",),
        *("raised.type", "TypeError", "UnpicklableFunction", _UNPICKLABLE_ARGUMENT),
    ),
    Difference(
        ("argument_that_cannot_be_pickled",),
        *("raised.text", "cannot pickle*", "echoes *cannot pickle*fork", _UNPICKLABLE_ARGUMENT),
    ),
    *(
        Difference(("signal_of_the_users_choice",), *values, _USER_SIGNAL)
        for values in (
            ("0.raised.*", "*", ABSENT),
            ("0.returned.*", ABSENT, "None"),
        )
    ),
    Difference(
        (
            *("refused_specs", "streams", "parameters_of_a_rendezvous", "unknown_backend"),
            *("unknown_method", "negative_shutdown_timeout", "failed_child_without_failures"),
        ),
        *("*raised.text", "*", "*", _REFUSAL),
    ),
    Difference(("no_entry_point",), "raised.type", "AssertionError", "ValueError", _ENTRY_POINT),
    Difference(("no_entry_point",), "raised.text", "", "there is no entrypoint*", _ENTRY_POINT),
    *(
        Difference(("streams",), f"0.10:1.{path}", torch, ours, why)
        for why in ("Streams can be chosen for local ranks above 9, too.",)
        for path, torch, ours in (
            ("raised.type", "ValueError", ABSENT),
            ("returned", ABSENT, "{10: *"),
        )
    ),
    Difference(
        ("launch_config", "logs_specs"),
        *("*", "DefaultLogsSpecs(root_log_dir=*", "DefaultLogsSpecs(log_dir=*"),
        "The `repr` of `DefaultLogsSpecs` is the call that makes it, and a log folder is made when "
        "workers start.",
    ),
    Difference(
        ("signatures_of_classes",),
        *("LaunchConfig.*", "(absent)", "preload*"),
        _PRELOAD,
    ),
    Difference(
        ("signatures_of_classes",),
        *("LaunchConfig.*", "(absent)", "evidence*"),
        _PRELOAD,
    ),
    Difference(("launch_config",), "*.preload*", "(absent)", "*", _PRELOAD),
    Difference(("launch_config",), "*.evidence", "(absent)", "*", _PRELOAD),
    Difference(
        ("signatures_of_functions",),
        *("record.0", "fn", "fn = None"),
        "`record` also works as `@record(error_handler=…)`.",
    ),
    *(
        Difference(("failures_of_error_files",), *values, _UNREADABLE)
        for values in (
            ("0.no message.raised.*", "*", ABSENT),
            ("0.no message.returned.*", ABSENT, "*"),
            ("1.raised.*", "*", ABSENT),
            ("1.returned.*", ABSENT, "*"),
        )
    ),
    Difference(
        ("failures_of_error_files",),
        *("0.text without a time.returned.1", "0", "1000"),
        "An error file without a time has the time at which it was read, and not 1970.",
    ),
    *(
        Difference(("functions_at_exit",), path, torch, ours, _AT_EXIT)
        for method in ("fork", "forkserver")
        for path, torch, ours in (
            (f"{method}.1", "[]", ABSENT),
            (f"{method}.1.*", ABSENT, "ended-*"),
        )
    ),
    Difference(
        ("environment_of_workers", "environment_of_the_launcher", "virtual_local_rank"),
        *("*.TORCHELASTIC_USE_AGENT_STORE", "True", "False", _AGENT_STORE),
    ),
    *(
        Difference(("missing_program",), *values, _MISSING)
        for values in (
            ("raised.type", "FileNotFoundError", "ChildFailedError"),
            ("raised.text", "*No such file*", "*/nowhere/program: No such file or directory*"),
            ("raised.name", ABSENT, "/nowhere/program"),
            ("raised.first.*", ABSENT, "*"),
            ("raised.failures.0.*", ABSENT, "*"),
            ("raised.failures.0.exitcode", ABSENT, "127"),
        )
    ),
    *(
        Difference(("failure_of_one_node",), *values, _ENDS_ALL)
        for values in (
            ("0.1.returned.state.*", "SUCCEEDED", "FAILED"),
            ("0.1.returned.is_failed", "false", "true"),
            ("0.1.returned.return_values*", "*", "*"),
            ("0.1.returned.failures*", "*", "*"),
            ("0.1.returned.failures.1.message.message", ABSENT, "RuntimeError: group 1"),
            ("0.2.state.*", "SUCCEEDED", "FAILED"),
        )
    ),
)
