"""Test what a command that is stopped says about its finished part."""

import pytest

from compare.errors import LaunchError
from compare.experiment.run import reporting_early_end
from compare.schema.store import RESULTS_FILE
from compare.system.files import write_json
from tests.unit.factories import a_run


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([4.0], "The finished part is kept: ringside report "),
        ([], "No launch has finished. The logs of the run: "),
    ],
)
def test_error_offers_a_part_only_if_a_launch_has_finished(tmp_path, times, words):
    write_json(tmp_path / RESULTS_FILE, a_run({"ddp": times}, complete=False))
    with pytest.raises(LaunchError) as caught, reporting_early_end(tmp_path, lambda _: None):
        raise LaunchError("rank 1 died.")
    assert caught.value.__notes__ == [f"{words}{tmp_path}"]
