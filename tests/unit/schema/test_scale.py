"""Counts, batches, and the folder of a scaling series."""

import pytest

from compare.errors import UsageError
from compare.schema.scale import batch_of, folder_of, read_counts
from compare.schema.store import RESULTS_FILE, SCALE_FILE, read_result
from compare.system.files import write_json
from tests.unit.scales import a_scale

TIMES = {1: {"ddp": [4.0] * 3}, 2: {"ddp": [5.0] * 3}}


@pytest.mark.parametrize(("written", "counts"), [("1,2,4", (1, 2, 4)), ("4, 1", (1, 4)), ("2,2,1", (1, 2))])
def test_counts_are_read_rising_and_once(written, counts):
    assert read_counts(written) == counts


@pytest.mark.parametrize("written", ["", "2", "2,2", "1,two", "1,,2", "0,1", "1.5,2"])
def test_counts_that_cannot_scale_are_refused(written):
    with pytest.raises(UsageError, match="-np/--num-proc cannot be") as caught:
        read_counts(written)
    assert caught.value.remedy


def test_batch_is_kept_per_rank_or_shared():
    assert [batch_of("weak", 64, count) for count in (1, 2, 4)] == [64, 64, 64]
    assert [batch_of("strong", 64, count) for count in (1, 2, 4)] == [64, 32, 16]
    with pytest.raises(UsageError, match="3 ranks cannot share a global batch of 64"):
        batch_of("strong", 64, 3)


def test_scale_is_read_from_its_folder_and_its_file(tmp_path):
    scale = a_scale(TIMES)
    write_json(tmp_path / SCALE_FILE, scale.series)
    for count, run in scale.runs.items():
        folder_of(tmp_path, count).mkdir()
        write_json(folder_of(tmp_path, count) / RESULTS_FILE, run)
    found = read_result(tmp_path)
    assert found == read_result(tmp_path / SCALE_FILE)
    assert found.series == scale.series
    assert found.runs[1] == read_result(folder_of(tmp_path, 1))
