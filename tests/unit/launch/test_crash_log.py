"""The lines of a log that explain why its rank died."""

import pytest

from compare.launch.failures import CrashLog, read_crash_log, read_launcher_log

STACKS = (
    '\n\nThread 0x02 (most recent call first):\n  File "/x/other.py", line 1 in watch\n\n'
    'Current thread 0x01 (most recent call first):\n  File "/x/a.py", line 9 in f\n'
    '  File "/x/b.py", line 1 in g\n'
)


OTHER_THREAD = 'Thread 0x02 (most recent call first):\n  File "/x/other.py", line 1 in watch\n'
NO_FRAME = "Current thread 0x01 (most recent call first):\n  <no Python frame>\n\n"
STATE = "\nPython runtime state: initialized\nSystemError: NULL without an error"
SEGMENTATION = "Fatal Python error: Segmentation fault"
ABORTED = "Fatal Python error: Aborted"
BAD_CALL = "Fatal Python error: f: bad call"
QUOTED = "Fatal Python error: not mine"
WARNING = "/x/y.py:3: FutureWarning: soon gone"
# A log; its error, the line printed before it, and its place.
CRASHES = {
    "an empty log": ("", "", "", ""),
    "a crash alone": (f"{SEGMENTATION}{STACKS}", SEGMENTATION, "", "/x/a.py:9"),
    "a crash after a line": (f"loading\n{SEGMENTATION}{STACKS}", SEGMENTATION, "loading", "/x/a.py:9"),
    "a crash in a line": (f"loading ... {SEGMENTATION}{STACKS}", SEGMENTATION, "loading ...", "/x/a.py:9"),
    "a crash above more lines": (f"{BAD_CALL}{STATE}{STACKS}", BAD_CALL, "", "/x/a.py:9"),
    "quoted crashes": (f"caught: {ABORTED}\n{QUOTED}\n\n", "", QUOTED, ""),
    "the last of several": (f"said: {QUOTED}\n{ABORTED}{STACKS}", ABORTED, f"said: {QUOTED}", "/x/a.py:9"),
    "a crash in no known thread": (f"{ABORTED}\n\n{OTHER_THREAD}", ABORTED, "", ""),
    "a crash without a frame": (f"{ABORTED}\n\n{NO_FRAME}{OTHER_THREAD}", ABORTED, "", ""),
    "a line below a warning": (f"{WARNING}\n  what():  no device\n", "", "what():  no device", ""),
    "a warning's own code": (f"{WARNING}\n  warnings.warn(\n", "", WARNING, ""),
}


@pytest.mark.parametrize(("log", "error", "printed", "where"), CRASHES.values(), ids=CRASHES)
def test_crash_is_found_with_its_place_and_the_line_before_it(log, error, printed, where):
    assert read_crash_log(log) == CrashLog(error=error, printed=printed, where=where)


@pytest.mark.parametrize(
    "words",
    [
        "terminate called: what(): no such device",
        "*** stack smashing detected ***: terminated",
        "*** buffer overflow detected ***",
        "*** The MPI_Allreduce() function was called before MPI_INIT was invoked.",
        "2 of 4 GPUs have fallen off the bus",
        "#2 gave up",
        "/x/y.py:12: UserWarning: the device is busy",
        "[2024-05-01 12:00:00 +0000] [7] [ERROR] out of memory",
        "[h:1] *** MPI_ERR_TRUNCATE: message truncated",
        "キューが空です",
    ],
)
@pytest.mark.parametrize(
    "after",
    [
        "",
        "\n   \n\x07\x1b\n",
        "==== backtrace (tid:   1234) ====\n 0  /x/libucs.so(f+0x2) [0x7f]\n 1: 0x7e\n=======\n",
        "frame #1: <unknown function> + 0x29d90 (0x7f in /lib/libc.so.6)\n#1 /x/libc.so [0x7e]\n",
        "    @     0x7f12 main\n------------\n",
        "[h:12] *** Process received signal ***\n",
        "Exception raised from f at /x/c.cpp:3 (most recent call first):\n#9 clone3 from ??:0\n",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        "[h:1] *** MPI_ERRORS_ARE_FATAL (ranks will now abort,\n[h:1] ***    and potentially your MPI job)\n",
        "h:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[0]\n",
        "[h:12] [ 0] /lib/libc.so.6(+0x3c)[0x7f]\n[h:12] *** End of error message ***\n",
    ],
)
def test_last_line_is_no_rule_and_no_stack_of_a_library(words, after):
    assert read_crash_log(f"connected\n{words}\n{after}").printed == words


def test_crash_log_is_safe_for_a_terminal():
    found = read_crash_log(
        f"\x1b[31mgiving up\x07\x1b[0m\r\nFatal Python error: a\x1b[2Jb{'x' * 999}{STACKS}"
    )
    assert found.printed == "giving up"
    assert found.error.startswith("Fatal Python error: abxxx")
    assert len(found.error) == 300


REASON = "ModuleNotFoundError: No module named 'msgspec'"


@pytest.mark.parametrize(
    "aftermath",
    [
        "E1126 21:46:06 21274 torch/…/api.py:1002] failed (exitcode: 3) local_rank: 1 (pid: 21280)",
        "W1126 21:46:06 21274 torch/…/api.py:1028] Sending process 21279 closing signal SIGTERM",
        "Primary job  terminated normally, but 1 process returned\na non-zero exit code.",
        "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).",
        "Process 1 exit with status code 3.\nTerminating remaining workers after failure of Process 1.",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        "[0]<stderr>:Terminated",
        "Terminated",
        "mpirun: abort is already in progress...hit ctrl-c again to forcibly terminate",
        "W1126 21:51:03 27623 torch/…/api.py:753] Received 15 death signal, shutting down workers",
    ],
)
@pytest.mark.parametrize("before", [[], [REASON]])
def test_launcher_log_is_read_up_to_what_follows_the_end_of_a_rank(before, aftermath):
    after = f"{aftermath}\nTraceback (most recent call last):\nRuntimeError: a launcher's own"
    assert read_launcher_log("\n".join([*before, after])) == before


def test_launcher_log_is_shown_with_its_first_and_its_last_lines():
    shown = read_launcher_log("\n".join(["-----", *map(str, range(100)), "\x1b[31m" + REASON]))
    assert shown == [*"01234567", "…", "98", "99", REASON]
