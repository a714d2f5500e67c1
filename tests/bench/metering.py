"""Ask whether the meter tells the truth, on two ranks: ``python -m tests.bench.metering CHECK [--more N]``.

``delay``      a delay in synchronising is found, and the same in computing changes nothing
``aa``         equal blocks differ in at most 5 of 100
``idle``       what the meter costs a script in which it measures nothing
``agreement``  meter and ``ringside run`` find the same cost for one model in several sizes
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from compare.analysis import analyse
from compare.analysis.figures import t_interval
from compare.analysis.metered import measure
from compare.schema.environment import launch_settings
from compare.schema.metered import METER_FILE, read_metered
from compare.schema.store import read_run
from tests.comparing import ROOT, compare, torchrun

SCRIPT = ROOT / "tests/e2e/metered/train.py"
MODEL = ROOT / "tests/bench/workloads/metered.py"
DELAY, NO_DELAY = 0.003, 1e-6
"""Seconds. All delays in synchronising stand in the same hook, which takes time of its own."""
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768)
_STEPS = 1400
"""Steps of the script under the meter, enough for all pairs of blocks."""
_SETTINGS = launch_settings(threads=1, interface="lo", executables=Path(sys.executable).parent)
"""What a run sets for its ranks, such as how the C library keeps memory."""
_METER = ("-m", "ringside.meter")
_LONG = ("--epochs", 4, "--batches", 320)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--more", type=int, default=10, help="how often (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringside-metering-") as folder:
        CHECKS[given.check](Path(folder), given.more)


def _delay(folder, count):
    delays = {"none": (), "synchronising": ("--synchronising", DELAY), "computing": ("--computing", DELAY)}
    more = {(name, what): [] for name in ("synchronising", "computing") for what in ("step", "exposed")}
    for number in range(count):
        found = {}
        for name, options in delays.items():
            output = folder / f"{number}-{name}"
            figures = _metered(output, SCRIPT, *_LONG, "--synchronising", NO_DELAY, *options)
            found[name] = {"step": figures.step_seconds.mean, "exposed": figures.exposed_seconds.mean}
        for (name, what), differences in more.items():
            differences.append(found[name][what] - found["none"][what])
        print({key: f"{differences[-1] * 1e3:.2f} ms" for key, differences in more.items()}, flush=True)
    for (name, what), differences in more.items():
        print(f"{DELAY * 1e3:g} ms in {name}: {_words(differences, 1e3)} ms more, {what}")


def _aa(folder, count):
    false = 0
    for number in range(count):
        ratio = _metered(folder / str(number), SCRIPT, *_LONG, meter=("--aa",)).aa_ratio
        false += not ratio.low <= 1 <= ratio.high
        print(f"{ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})", flush=True)
    print(f"{false} of {count} A/A tests found a difference")


def _idle(folder, count):
    ratios = []
    for _ in range(count):
        bare = _seconds(_torchrun(folder, MODEL, 1000))
        metered = _seconds(_torchrun(folder, *_METER, "--no-measure", "--output", _new(folder), MODEL, 1000))
        ratios.append(metered / bare)
        print(f"{ratios[-1]:.4f}", flush=True)
    print(f"a step under an idle meter takes {_words(ratios)} times a bare one")


def _agreement(folder, count):
    found = {width: {"by the meter": [], "in a run": [], "against none": []} for width in WIDTHS}
    for turn in range(count):
        for width, of_width in found.items():
            # The load of the machine changes from minute to minute, so both take turns, in either order.
            for tool in (_by_meter, _by_run)[:: (-1) ** turn]:
                for name, seconds in tool(folder / f"{width}-{turn}", width).items():
                    of_width[name].append(seconds)
            print(
                turn, width, *(f"{of[-1] * 1e3:.2f} ms {name}" for name, of in of_width.items()), flush=True
            )
        if turn:
            _compare(found)


def _compare(found):
    """Print each width's costs with their intervals over the turns, and how many of these meet."""
    agree, ratios = 0, []
    for width, of_width in found.items():
        of_meter, of_run, _ = of_width.values()
        (low, high), (run_low, run_high) = t_interval(of_meter, 0.025), t_interval(of_run, 0.025)
        agree += low <= run_high and run_low <= high
        ratios.append(statistics.fmean(of_meter) / statistics.fmean(of_run))
        print(f"{width}:", ", ".join(f"{_words(of, 1e3)} ms {name}" for name, of in of_width.items()))
    print(
        f"{agree} of {len(found)} pairs of intervals meet; the meter finds {_words(ratios)} times the cost "
        "of a run",
        flush=True,
    )


def _by_meter(output, width):
    environment = _SETTINGS | {"HIDDEN": str(width)}
    figures = _metered(output.with_suffix(".meter"), MODEL, _STEPS, environment=environment)
    return {"by the meter": figures.exposed_seconds.mean}


def _by_run(output, width):
    compare(
        *("run", "--workload", f"{MODEL}:make", "--backend", "ddp", "-np", 2, "--threads", 1),
        *("--batch-size", 64, "--repeats", 1, "--steps", 200, "-x", f"HIDDEN={width}"),
        *("--output", output.with_suffix(".run")),
        environment={"HIDDEN": str(width)},
        timeout=600,
    )
    arms = analyse(read_run(output.with_suffix(".run"))).summary.arms
    (arm,) = [one for one in arms if one.arm == "ddp"]
    return {
        "in a run": arm.detail.exposed_seconds.mean,
        "against none": arm.sync_seconds.mean,
    }


CHECKS = {"delay": _delay, "aa": _aa, "idle": _idle, "agreement": _agreement}


def _metered(output, script, *arguments, meter=(), environment=None):
    """Meter a script on two ranks, and return the figures."""
    _torchrun(
        output.parent,
        *(*_METER, *meter, "--output", output, script, *arguments),
        environment=environment,
    )
    record = read_metered(output / METER_FILE)
    if not record.measured:
        raise SystemExit(f"{output.name}: {record.ended}")
    return measure(record)


def _torchrun(folder, *words, environment=None):
    """Start two ranks, and return what they print."""
    environment = environment or {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = torchrun(folder, *words, environment=environment, timeout=600)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def _new(folder):
    return Path(tempfile.mkdtemp(dir=folder)) / "out"


def _seconds(printed):
    return float(printed.split()[-1])


def _words(values, factor=1.0):
    low, high = t_interval(values, 0.025)
    return f"{statistics.fmean(values) * factor:.4g} ({low * factor:.4g} to {high * factor:.4g})"


def _span(estimate):
    return f"{estimate.mean * 1e3:.2f} ({estimate.low * 1e3:.2f}-{estimate.high * 1e3:.2f}) ms"


if __name__ == "__main__":
    main()
