"""Answer the flags and words of nccl-tests with those of ``compare collectives``."""

from __future__ import annotations

from compare.errors import UsageError

_LEFT_OUT = "Leave it out"
_FLAGS = {
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
    ("-a", "--average"): f"{_LEFT_OUT}: --export-json FILE has the times of every rank.",
    ("-R", "--local-register"): f"{_LEFT_OUT}: buffers are torch's, and are not registered.",
    ("-S", "--report-timestamps"): f"{_LEFT_OUT}: --export-json FILE has the time of every launch.",
    ("-J", "--output-file"): "It is --export-json FILE here.",
    ("-M", "--memory-report"): f"{_LEFT_OUT}: memory is not reported.",
    (
        "-O",
        "--out-of-place",
    ): f"{_LEFT_OUT}: all_reduce, broadcast and reduce are in place, the others are not.",
    ("-D", "--device-implementation"): f"{_LEFT_OUT}: the library's own collectives are timed.",
    ("-V", "--device-cta-count"): f"{_LEFT_OUT}: set NCCL's variables in your shell.",
}
_ANSWERS = {flag: answer for flags, answer in _FLAGS.items() for flag in flags}
_DTYPES = {
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


def answer_to(flag: str) -> str:
    """Return what to use in place of a flag of nccl-tests; empty if there is no such flag."""
    return _ANSWERS.get(flag.replace("_", "-"), "")


def require_torch_names(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dtypes unchanged, after checking that none is written as in nccl-tests.

    Raises:
        UsageError: one is; the error gives torch's name.
    """
    for dtype in dtypes:
        if dtype in _DTYPES:
            raise UsageError(
                f"--dtype {dtype} is not known.",
                found="Dtypes have torch's names.",
                remedy=f"Use --dtype {_DTYPES[dtype]}.",
            )
    return dtypes
