"""Predict a run's arms on other hosts and links: ``ringside predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from compare.cli.flag_options import read_exports
from compare.cli.options import Exports, Formats, RunFolder, arms_flag, hosts_flag, output_flag
from compare.cli.output import as_output_error, show_and_export
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.report.document import Document
    from compare.schema.results import Run


def predict(
    run_directory: RunFolder,
    *,
    hosts: Annotated[
        str | None, hosts_flag(show_default="2,4,8,16", help="Numbers of hosts, comma separated.")
    ] = None,
    link: Annotated[
        str | None,
        hosts_flag(
            help="RATE or RATE,LATENCY of each host's network: 10gbit, or 1gbit,2ms.",
            show_default="as measured",
        ),
    ] = None,
    measured_link: Annotated[
        str | None,
        hosts_flag(
            help="RATE or RATE,LATENCY of the network that RUN was measured on.",
            show_default="of a rehearsal, its own",
        ),
    ] = None,
    bucket_cap: Annotated[
        str | None, arms_flag(help="Also predict DDP with these bucket sizes, in MiB: 1,25.")
    ] = None,
    against: Annotated[
        Path | None, output_flag(help="Print predictions beside the measurements of this other run.")
    ] = None,
    model_scale: Annotated[
        float | None, arms_flag(help="Instead, memory with so many times the parameters.", min=0.001, max=1e6)
    ] = None,
    form: Formats = "table",
    export: Exports = None,
) -> None:
    """Predict step times elsewhere, or the memory of a larger model."""
    from compare.analysis.predict import compare_with, forecast, with_measured_link
    from compare.report.of_prediction import document_against, document_of
    from compare.schema.hosts import parse_link
    from compare.schema.store import RESULTS_FILE, find_run, read_run

    run = read_run(find_run(run_directory, [RESULTS_FILE]))
    if measured_link:
        run = with_measured_link(run, parse_link(measured_link, "--measured-link"))
    other_link = parse_link(link) if link else None
    if model_scale is not None:
        document = _document_of_memory(run, model_scale, hosts, [link, measured_link, bucket_cap, against])
    elif against:
        if hosts or bucket_cap:
            raise UsageError(
                "--against takes hosts and buckets from the other run.",
                found=f"{'--hosts' if hosts else '--bucket-cap'} names others.",
                remedy=f"Leave out --against, or {'--hosts' if hosts else '--bucket-cap'}.",
            )
        measured = read_run(find_run(against, [RESULTS_FILE]))
        with as_output_error(run_directory, against):
            document = document_against(compare_with(run, measured, other_link))
    else:
        counts = [int(count) for count in _read_numbers("--hosts", hosts or "2,4,8,16", least=2, whole=True)]
        caps = _read_numbers("--bucket-cap", bucket_cap, least=0.1) if bucket_cap else []
        with as_output_error(run_directory):
            document = document_of(forecast(run, counts, other_link, caps))
    show_and_export(document, read_exports(export), form)


def _document_of_memory(run: Run, scale: float, hosts: str | None, of_time: list[object]) -> Document:
    """Return the document of what ranks would hold of a model with ``scale`` times the parameters.

    Raises:
        UsageError: a flag was given that only predictions of time take; ``of_time`` has their values.
    """
    from compare.report.of_prediction import document_of_memory

    if any(of_time):
        raise UsageError(
            "--model-scale predicts memory, and never time.",
            found="--link, --measured-link, --bucket-cap and --against are for predictions of time.",
            remedy="Leave them out, or --model-scale.",
        )
    counts = _read_numbers("--hosts", hosts, least=1, whole=True) if hosts else []
    per_host = max(1, run.config.ranks // len(run.hosts))  # as in the run
    return document_of_memory(run, scale, [int(count) * per_host for count in counts])


def _read_numbers(flag: str, written: str, *, least: float, whole: bool = False) -> list[float]:
    """Return the different numbers that a flag has, separated by commas, in ascending order.

    Raises:
        UsageError: one is not a number, is below ``least``, or is not whole as ``whole`` demands.
    """
    try:
        numbers = [float(int(text) if whole else float(text)) for text in written.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number < float("inf") for number in numbers):
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(
            f"{flag} cannot be {written!r}.",
            remedy=f"Use {kind} that are {least:g} or more, separated by commas.",
        )
    return sorted(set(numbers))
