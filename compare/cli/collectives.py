"""Time collectives alone: ``ringside collectives``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from compare.cli.options import Formats, LaunchFlags, complete_names, output_option, with_flags
from compare.cli.output import carry_out, print_result
from compare.cli.requests import read_launch_request
from compare.errors import UsageError

Groups: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Groups, comma separated or repeated: gloo, nccl, horovod, horovod_mpi, mpi, shared_memory.",
        show_default="all available",
        autocompletion=complete_names("backends", "GROUPS"),
    ),
]
Collectives: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Collectives, comma separated or repeated: all_reduce, all_gather, reduce_scatter, broadcast, "
        "reduce, all_to_all, send_recv, barrier, or all.",
        show_default="all_reduce",
        autocompletion=complete_names("compare.schema.collectives", "COLLECTIVES"),
    ),
]
Dtypes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Dtypes, comma separated or repeated: int8, uint8, int32, uint32, int64, uint64, float16, "
        "float32, float64, bfloat16, float8_e4m3fn, float8_e5m2, or all.",
        show_default="float32",
        autocompletion=complete_names("compare.schema.collectives", "DTYPES"),
    ),
]
Operations: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--op",
        metavar="NAMES",
        help="Operations, comma separated or repeated: sum, prod, min, max, avg, or all.",
        show_default="sum",
        autocompletion=complete_names("compare.schema.collectives", "OPERATIONS"),
    ),
]

_LEFT_OUT = "Leave it out"
_ADVICE = {
    ("-t", "--nthreads"): "Every rank is a process with one device: -np N.",
    ("-g", "--ngpus"): "Every rank is a process with one device: -np N --device cuda.",
    ("--minbytes",): "It is -b here.",
    ("--maxbytes",): "It is -e here.",
    ("-i", "--stepbytes"): "Here sizes can only grow by a factor: -f 2.",
    ("--stepfactor",): "It is -f here.",
    ("--iters",): "It is -n here.",
    ("--warmup-iters",): "It is -w here.",
    ("-m", "--agg-iters"): f"{_LEFT_OUT}: calls follow each other in a row, until they last 5 ms.",
    ("-N", "--run-cycles"): "Launches are repeated: --repeats N.",
    ("-p", "--parallel-init"): f"{_LEFT_OUT}: every rank is a process.",
    ("-c", "--check"): f"{_LEFT_OUT}: one further call of every size is always checked.",
    ("-o",): "It is --op here: sum, prod, min, max or avg.",
    ("-d", "--datatype"): "It is --dtype here, by torch's names: half is float16, float is float32.",
    ("-r", "--root"): f"{_LEFT_OUT}: the root is rank 0.",
    ("-z", "--blocking"): f"{_LEFT_OUT}: every library waits as it does in training.",
    ("-y", "--stream-null"): f"{_LEFT_OUT}: torch chooses the stream.",
    ("-T",): "It is --timeout here, in seconds for a launch.",
    ("-G", "--cudagraph"): f"{_LEFT_OUT}: no CUDA graph is captured.",
    ("-C", "--report-cputime"): f"{_LEFT_OUT}: a call is timed until its result is there.",
    ("-a", "--average"): f"{_LEFT_OUT}: --export FILE.json has the times of every rank.",
    ("-R", "--local-register"): f"{_LEFT_OUT}: buffers are torch's, and are not registered.",
    ("-S", "--report-timestamps"): f"{_LEFT_OUT}: --export FILE.json has the time of every launch.",
    ("-J", "--output-file"): "It is --export FILE.json here.",
    ("-M", "--memory-report"): f"{_LEFT_OUT}: memory is not reported.",
    (
        "-O",
        "--out-of-place",
    ): f"{_LEFT_OUT}: all_reduce, broadcast and reduce are in place, the others are not.",
    ("-D", "--device-implementation"): f"{_LEFT_OUT}: the library's own collectives are timed.",
    ("-V", "--device-cta-count"): f"{_LEFT_OUT}: set NCCL's variables in your shell.",
}
"""What to use in place of flags of nccl-tests, by the forms of each flag."""
_TORCH_NAMES = {
    "char": "int8",
    "int": "int32",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "f8e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e5m2": "float8_e5m2",
}
"""torch's name of a dtype, by its name in nccl-tests."""


@with_flags(
    LaunchFlags,
    output=Annotated[Path | None, output_option(name="runs/<time>-<collective>-np<ranks>")],
)
def collectives(
    flags: LaunchFlags,
    *,
    group: Groups = None,
    collective: Collectives = None,
    dtype: Dtypes = None,
    operation: Operations = None,
    begin: Annotated[
        str, typer.Option("-b", "--begin", help="Minimum size in bytes; K, M and G are powers of two.")
    ] = "8",
    end: Annotated[str, typer.Option("-e", "--end", help="Maximum size in bytes.")] = "64M",
    factor: Annotated[int, typer.Option("-f", "--factor", help="Each size is this many times the last.")] = 2,
    sizes_of: Annotated[
        Path | None,
        typer.Option(help="Time the collectives of a step of this run's arms that shard, at their sizes."),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            "-n", "--iterations", help="Timed iterations of a size in each launch, of 5 ms or one call."
        ),
    ] = 5,
    warmup: Annotated[
        int, typer.Option("-w", "--warmup", help="Calls of a size before the first timed one.")
    ] = 1,
    repeats: Annotated[int, typer.Option(help="Launches of every group.")] = 3,
    form: Formats = "table",
    detail: Annotated[
        bool, typer.Option("--detail", help="One table per group, with every column of nccl-tests.")
    ] = False,
) -> None:
    """Time each group's collectives alone over sizes, and check the results."""
    from compare.experiment import SweepRequest, compare_collectives
    from compare.report import View, document_of
    from compare.schema.collectives import COLLECTIVES, DTYPES, OPERATIONS, SweepFields, parse_size
    from compare.schema.collectives import read_collective as read

    chosen = map(read, _read_names("--collective", collective, COLLECTIVES))
    sizes = _read_sizes(sizes_of) if sizes_of else {}
    config: SweepFields = {
        "collectives": tuple(chosen) or tuple(sizes) or ("all_reduce",),
        "dtypes": require_torch_names(_read_names("--dtype", dtype, DTYPES)) or ("float32",),
        "operations": _read_names("--op", operation, OPERATIONS) or ("sum",),
        "begin_bytes": parse_size("-b/--begin", begin),
        "end_bytes": parse_size("-e/--end", end),
        "factor": factor,
        "sizes": sizes,
        "iterations": iterations,
        "warmup_iterations": warmup,
        "rounds": repeats,
    }
    request = SweepRequest(groups=_read_names("--group", group), **vars(read_launch_request(flags, config)))
    view = View(detail=detail)
    run, directory = carry_out(compare_collectives, request, flags, view)
    print_result(document_of(run, form, view), directory, flags, form)
    raise typer.Exit(run.exit_code)


def _read_sizes(run_directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the collectives that steps of a run called, by the collective's name."""
    from compare.schema.collectives import sizes_of_steps
    from compare.schema.store import RESULTS_FILE, find_run, read_run

    return sizes_of_steps(read_run(find_run(run_directory, [RESULTS_FILE])))


def _read_names(flag: str, written: list[str] | None, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names that a flag has, separated by commas or in several places; ``all`` gives ``known``.

    Raises:
        UsageError: the flag is given without a name.
    """
    names = tuple(name.strip() for text in written or () for name in text.split(",") if name.strip())
    if written and not names:
        raise UsageError(
            f"{flag} names nothing.", remedy=f"Name at least one, or leave {flag} out to get its default."
        )
    return tuple(known) if known and names == ("all",) else names


# ---- the words of nccl-tests ----


def replacement_for(flag: str) -> str:
    """Return a sentence on what replaces a flag of nccl-tests here; empty if it is no flag of theirs."""
    return next((advice for flags, advice in _ADVICE.items() if flag.replace("_", "-") in flags), "")


def require_torch_names(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dtypes unchanged, after checking that none has its name of nccl-tests.

    Raises:
        UsageError: one has; the error states torch's name for it.
    """
    for dtype in dtypes:
        if dtype in _TORCH_NAMES:
            raise UsageError(
                f"--dtype {dtype} is not known.",
                found="Dtypes have torch's names.",
                remedy=f"Use --dtype {_TORCH_NAMES[dtype]}.",
            )
    return dtypes
