"""Test the exit codes and the limits of a gate."""

import pytest

from compare.analysis.change import Change, Changes, outcome_of
from compare.cli.gate import read_percent, require_passed
from compare.cli.main import EXIT_CODES
from compare.cli.output import show_changes
from compare.errors import SlowerError, TooNoisyError, UsageError


def a_gate(kind):
    change = Change(
        arm="ddp", kind=kind, ratio=1.1, low=1.0, high=1.2, level=0.95, rounds=(5, 5), at_most=1.2
    )
    return Changes(
        command="gate",
        old="there",
        new="here",
        reference="",
        changes=[change],
        limit=0.05,
        outcome=outcome_of([change]),
    )


def test_gate_has_an_exit_code_for_slower_and_one_for_open():
    require_passed(a_gate("not slower"))
    require_passed(a_gate("faster"))
    for kind, error in (("slower", SlowerError), ("unresolved", TooNoisyError)):
        assert error.exit_code in EXIT_CODES
        with pytest.raises(error, match=f"exit code {error.exit_code}"):
            require_passed(a_gate(kind))


def test_conclusion_of_a_gate_that_fails_is_printed_once(capsys):
    show_changes(a_gate("slower"), "table")
    with pytest.raises(SlowerError) as failed:
        require_passed(a_gate("slower"))
    printed = f"{capsys.readouterr().out}{failed.value}"
    assert printed.count("SLOWER, by an estimate of more than 5 %: ddp.") == 1


@pytest.mark.parametrize(("written", "fraction"), [("5%", 0.05), ("7.5", 0.075)])
def test_limit_is_read_with_and_without_its_sign(written, fraction):
    assert read_percent(written) == pytest.approx(fraction)


@pytest.mark.parametrize("limit", ["0", "-1%", "five", "nan", "1e9"])
def test_limit_that_is_no_percentage_is_refused(limit):
    with pytest.raises(UsageError):
        read_percent(limit)
