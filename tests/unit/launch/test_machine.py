"""Test what an agent reports of its machine."""

import pytest

from compare.launch.agent.machine import count_gpus


@pytest.mark.parametrize(
    ("visible", "counted"), [(None, 2), ("", 0), ("1", 1), ("0,1,2", 2), ("-1", 0), ("0, -1,1", 1)]
)
def test_gpus_are_counted_without_torch(tmp_path, monkeypatch, visible, counted):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus(tmp_path) == counted
    assert count_gpus(tmp_path / "no driver") == 0
