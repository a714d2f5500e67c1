"""Test how the record of a metered script comes from another host, which is a child process here."""

import os

import pytest

from compare.errors import OutputError
from compare.experiment.meter import _fetch
from compare.launch.engines import Carrier
from compare.launch.script import Place
from compare.schema.hosts import Host, Network


class Near(Carrier, frozen=True):
    """A carrier that reaches every host as a child process here, after some shell commands."""

    before: str = ""

    def _argv(self, _host, argv):
        return ("sh", "-c", f'{self.before}; exec "$@"', "sh", *argv)


@pytest.fixture
def fetch(tmp_path):
    """Fetch a record by a carrier; it is at ``fetch.source`` on the host, and ``fetch.target`` here."""

    def call(before=":"):
        place = Place(
            hosts=(Host(name="far", slots=2),), carrier=Near(before=before), network=Network(), port=1
        )
        _fetch(call.source, call.target, place)

    call.source, call.target = tmp_path / "there" / "meter.json", tmp_path / "here" / "meter.json"
    call.source.parent.mkdir()
    call.target.parent.mkdir()
    return call


def test_a_record_larger_than_a_hosts_answer_may_be_is_fetched(fetch):
    record = b'{"seconds": 0.0123, "steps": 25},' * 100_000
    fetch.source.write_bytes(record)
    fetch()
    assert fetch.target.read_bytes() == record
    assert not fetch.source.parent.exists()


def test_a_host_without_a_record_has_none_here_either(fetch):
    fetch()
    assert not fetch.target.exists()
    assert not fetch.source.parent.exists()


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("echo no route >&2; exit 255", "no route"),
        ("echo welcome", "Not a gzipped file"),
        ("head -c 2000000 /dev/zero", "more than 1 MiB"),
    ],
)
def test_a_record_that_cannot_be_fetched_stays_and_is_named(fetch, before, found):
    fetch.source.write_bytes(os.urandom(50))
    with pytest.raises(OutputError, match="could not be fetched from far") as error:
        fetch(before)
    assert found in error.value.found
    assert str(fetch.source) in error.value.remedy
    assert fetch.source.exists()
    assert not fetch.target.exists()
