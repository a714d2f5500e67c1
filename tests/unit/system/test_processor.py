"""Test that the processor is read as the kernel names it."""

from compare.system.processor import processor_name


def test_processor_has_the_name_that_the_kernel_states(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nmodel name\t: AMD EPYC 7763\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 7763\n"
    )
    assert processor_name(file) == "AMD EPYC 7763"


def test_processor_without_a_name_is_empty(tmp_path):
    file = tmp_path / "cpuinfo"
    assert processor_name(file) == ""
    file.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert processor_name(file) == ""
