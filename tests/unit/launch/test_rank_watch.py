"""Test what an agent finds in the files of its ranks."""

import pytest

from compare.launch.agent.rank_watch import RankWatch
from compare.schema.job import Progress, RankExit, append_progress, open_progress
from compare.schema.launch_files import LaunchFiles
from compare.system.files import write_json


@pytest.fixture
def files(tmp_path):
    return LaunchFiles(tmp_path)


def note(files, rank, step):
    record = Progress(stage="train", step=step, at=float(step), limit_seconds=30.0)
    with open_progress(files, rank) as file:
        append_progress(file, record)
    return record


def exits(files, rank, **changes):
    fields = {"pid": 7, "time": 1.0, "status": 1, "signal": None}
    write_json(files.exit(rank), RankExit(**fields | changes))


def test_only_the_latest_record_of_a_rank_is_news_and_only_once(files):
    watch = RankWatch(files)
    assert watch.look() is None
    note(files, 0, 1)
    first, other = note(files, 0, 2), note(files, 12, 1)
    assert watch.look().progress == {0: first, 12: other}
    assert watch.look() is None
    later = note(files, 12, 2)
    assert watch.look().progress == {12: later}


def test_rank_has_failed_if_it_exited_by_itself_without_a_result(files):
    watch = RankWatch(files)
    exits(files, 1)
    exits(files, 2, ended_by="signal")
    exits(files, 3)
    for rank in (0, 3):
        files.result(rank).write_text("{}")
    news = watch.look()
    assert (news.done, news.failed) == ([0, 3], [1])
    exits(files, 0, status=0)
    assert watch.look() is None


def test_result_that_is_written_while_the_folder_is_listed_is_not_missed(files, monkeypatch):
    watch = RankWatch(files)
    exits(files, 0, status=0)
    seen = LaunchFiles.rank_of

    def write_then_look(name):
        files.result(0).write_text("{}")
        return seen(name)

    monkeypatch.setattr(LaunchFiles, "rank_of", staticmethod(write_then_look))
    news = watch.look()
    assert (news.done, news.failed) == ([0], [])


def test_folder_that_is_gone_has_no_news(tmp_path):
    assert RankWatch(LaunchFiles(tmp_path / "gone")).look() is None
