"""Test the grammar of arms and its error messages."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends import BACKENDS, load
from backends.strategies.averaging import AveragingReplica
from compare.errors import UsageError
from compare.schema.arms import Arm, parse_arm, parse_arms

# No test here is about time, and a busy machine is no failure.
untimed = settings(deadline=None)

# Printable text, with most characters that have a meaning in the grammar.
VALUES = (
    st.text(st.sampled_from("aZ0 =:,{}\\²") | st.characters(categories=["L", "N", "P", "S"]), min_size=1)
    .map(str.strip)
    .filter(bool)
)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)


def values_of(option):
    return {
        "choice": st.sampled_from(option.choices or ("",)),
        "switch": st.booleans(),
        "number": POSITIVE,
        "count": st.integers(option.least, 10**9 - 1),
    }[option.kind]


@st.composite
def arms_of(draw):
    backend = draw(st.sampled_from(list(BACKENDS.values())))
    options = draw(st.permutations(backend.options))[: draw(st.integers(0, len(backend.options)))]
    given_ = {option.name: draw(values_of(option)) for option in options}
    needs = {option.name: option.needs for option in backend.options if option.needs}
    given_ |= dict(needs[name] for name in given_ if name in needs)
    # Two of them may need different values of one option.
    kept = {
        name: value for name, value in given_.items() if name not in needs or needs[name] in given_.items()
    }
    if backend.synchronises:
        variables = draw(
            st.dictionaries(st.sampled_from(["NCCL_ALGO", "OMPI_MCA_coll", "X"]), VALUES, max_size=2)
        )
        kept |= {f"env.{name}": value for name, value in variables.items()}
    return Arm(backend.name, kept)


def refusal(*texts):
    with pytest.raises(UsageError) as caught:
        parse_arms(texts)
    return str(caught.value)


# ---- valid arms ----


@pytest.mark.parametrize(
    ("text", "backend", "given_"),
    [
        ("ddp:bucket-cap-mb=0.5", "ddp", {"bucket_cap_mb": 0.5}),
        ("ddp:process-group=gloo", "ddp", {"process_group": "gloo"}),
        ("ddp:static_graph=No", "ddp", {"static_graph": False}),
        ("ddp:static_graph=1:bucket_cap_mb=2", "ddp", {"static_graph": True, "bucket_cap_mb": 2.0}),
        ("manual:mode=per-parameter", "manual", {"mode": "per_parameter"}),
        (" mpi : mode = flat ", "mpi", {"mode": "flat"}),
    ],
)
def test_parse_arm_reads_other_spellings_than_those_of_labels(text, backend, given_):
    arm = parse_arm(text)
    assert (arm.backend, arm.given) == (backend, given_)


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("none", 0),
        ("ddp:comm_hook=none", 0),
        ("ddp:comm_hook=powersgd:powersgd_rank=4", 2),
        ("horovod:compression=fp16", 2**-8),
    ],
)
def test_arm_gradient_tolerance_depends_on_its_options(text, tolerance):
    arm = parse_arm(text)
    assert arm.gradient_tolerance == tolerance
    assert arm.exact is (tolerance == 0)


def test_arm_options_default_and_delay_no_update_while_proven():
    overlap = {"mode": "overlap", "bucket_mb": 1.0, "process_group": "auto"}
    assert parse_arm("manual:mode=overlap").options == overlap
    arm = parse_arm("ddp:comm_hook=powersgd:powersgd_rank=4:powersgd_start=25")
    assert arm.options["powersgd_start"] == 25
    assert arm.options_while_proven == arm.options | {"powersgd_start": 2}
    assert parse_arm("horovod").options_while_proven == parse_arm("horovod").options


def test_arm_of_local_sgd_is_the_same_training_at_period_1():
    assert not Arm("localsgd").same_training
    assert parse_arm("localsgd:period=1").same_training
    assert not parse_arm("localsgd:period=1:outer=nesterov").same_training
    proven = parse_arm("localsgd:period=4:outer=nesterov").options_while_proven
    assert (proven["period"], proven["outer"]) == (1, "none")


def test_parse_arms_ignores_blanks_and_empty_places():
    assert parse_arms([" ddp , ,mpi,", "", "manual"]) == (Arm("ddp"), Arm("mpi"), Arm("manual"))
    assert parse_arms([]) == ()


# ---- sweeps ----


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("ddp:bucket_cap_mb={1,5}", ["ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=5"]),
        ("mpi,ddp:bucket_cap_mb={1, 5},none", ["mpi", "ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=5", "none"]),
        ("ddp:bucket_cap_mb={7}", ["ddp:bucket_cap_mb=7"]),
        ("{manual,mpi}:mode={flat,per-parameter}", [
            "manual:mode=flat", "manual:mode=per_parameter", "mpi:mode=flat", "mpi:mode=per_parameter",
        ]),
        ("ddp:env.NCCL_ALGO={Ring,Tree}", ["ddp:env.NCCL_ALGO=Ring", "ddp:env.NCCL_ALGO=Tree"]),
        ("ddp:bucket_cap_mb=1{0,5}", ["ddp:bucket_cap_mb=10", "ddp:bucket_cap_mb=15"]),
    ],
)  # fmt: skip
def test_parse_arms_expands_braces_to_a_sweep(text, labels):
    assert [arm.label for arm in parse_arms([text])] == labels


POWER = "comm_hook=powersgd"
UNBALANCED = ("ddp:bucket_cap_mb={1,5", "ddp:bucket_cap_mb=1}", "ddp:bucket_cap_mb={1,{5,6}}", "}ddp{", "{")
EMPTY = ("{}", "{1,,5}", "{1, }")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((text, f"{text}: the braces are not balanced.") for text in UNBALANCED),
        *((f"ddp:bucket_cap_mb={swept}", "a value of the sweep is empty") for swept in EMPTY),
        ("ddp:bucket_cap_mb={1,big}", "ddp:bucket_cap_mb=big: bucket_cap_mb cannot be 'big'."),
        ("ddp:bucket_cap_mb=" + "{0,1,2,3,4,5,6,7,8,9}" * 10, "makes 10000000000 arms"),
        ("none:env.NCCL_ALGO=Ring", "compared with the same control"),
        *((f"ddp:env.A={value}", "empty or has an unprintable") for value in ("", " ", "a\nbx", "\x1b[0mx")),
        ("ddp:env.A=1:env.A=2", "env.A is set twice"),
        ("mpi,ddp:bucket_cap=1", "ddp:bucket_cap=1"),
        ("none:mode=flat", "takes no options"),
        *((f"manual:mode{end}", "such as mode=flat.") for end in ("", "=", "= ")),
        *(
            (text, "set twice")
            for text in ("manual:mode=flat:mode=overlap", "ddp:bucket-cap-mb=1:bucket_cap_mb=1")
        ),
        *(
            (text, f"{text}: {option} has no effect here.\nIt needs {other}; this arm has {has}.")
            for text, option, other, has in (
                ("manual:bucket_mb=4", "bucket_mb", "mode=overlap", "mode=flat"),
                ("manual:bucket_mb=4:mode=per_parameter", "bucket_mb", "mode=overlap", "mode=per_parameter"),
                ("horovod:bucket_mb=4", "bucket_mb", "mode=overlap", "mode=optimizer"),
                ("horovod:mode=flat:compression=fp16", "compression", "mode=optimizer", "mode=flat"),
                ("ddp:powersgd_rank=2", "powersgd_rank", POWER, "comm_hook=none"),
                ("ddp:comm_hook=fp16:powersgd_start=2", "powersgd_start", POWER, "comm_hook=fp16"),
            )
        ),
        ("ddp:bucket_cap_mb", "such as bucket_cap_mb=25."),
        ("ddp:static_graph", "such as static_graph=false."),
    ],
)
def test_parse_arms_names_what_is_wrong_with_an_arm(text, named):
    assert named in refusal(text)


# ---- environment variables ----


@pytest.mark.parametrize(
    ("text", "environment", "label"),
    [
        ("ddp:env.NCCL_ALGO=Ring", {"NCCL_ALGO": "Ring"}, "ddp:env.NCCL_ALGO=Ring"),
        (
            r"mpi:mode=flat:env.UCX_NET_DEVICES=mlx5_0\:1\,mlx5_1\:1",
            {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"},
            r"mpi:mode=flat:env.UCX_NET_DEVICES=mlx5_0\:1\,mlx5_1\:1",
        ),
        ("mpi:env.OMPI_MCA_coll_tuned_priority= 90", {"OMPI_MCA_coll_tuned_priority": "90"}, None),
        ("ddp:env.A=x=y:env.B_2=true", {"A": "x=y", "B_2": "true"}, "ddp:env.A=x=y:env.B_2=true"),
        (r"ddp:env.A=\{1\}\\", {"A": "{1}\\"}, r"ddp:env.A=\{1\}\\"),
    ],
)
def test_parse_arms_reads_environment_variables(text, environment, label):
    (arm,) = parse_arms([text])
    assert arm.environment == environment
    assert not {name for name in arm.options if "env" in name}, "variables are no options of the backend"
    assert arm.label == label or label is None
    assert parse_arms([arm.label]) == (arm,)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "capital letters") for name in ("nccl_algo", "1A", "_A", "A-B", "", "A B", "É")),
        *((name, "secret") for name in ("HF_TOKEN", "NVIDIA_API_KEY", "SLURM_JWT", "MY_PASSWORD")),
        *(
            (name, "the same for every arm")
            for name in (
                *("OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "PATH", "PYTHONPATH", "GLOO_SOCKET_IFNAME"),
                *("HOROVOD_CONTROLLER", "OMP_PROC_BIND", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"),
                *("RINGSIDE_LAUNCH", "TMPDIR", "CUDA_VISIBLE_DEVICES", "PMIX_RANK"),
                *("OMPI_COMM_WORLD_RANK", "OMPI_MCA_btl_vader_backing_directory", "TORCHELASTIC_RUN_ID"),
            )
        ),
    ],
)
def test_parse_arms_refuses_a_variable_that_ringside_sets(name, reason):
    message = refusal(f"ddp:env.{name}=1")
    assert f"an arm cannot set {name or 'a variable without a name'}." in message
    assert reason in message


# ---- error messages ----


@pytest.mark.parametrize(
    ("text", "suggested", "listed"),
    [
        ("dpp", "ddp", "none, ddp, manual, horovod, mpi"),
        ("horvod", "horovod", "none, ddp, manual, horovod, mpi"),
        ("DDP", "ddp", "none, ddp, manual, horovod, mpi"),
        ("", None, "none, ddp, manual, horovod, mpi"),
        ("ddp:bucket_cap=1", "bucket_cap_mb", "process_group, bucket_cap_mb"),
        ("manual:mod=flat", "mode", "mode, bucket_mb, process_group"),
        ("horovod:controler=mpi", "controller", "controller"),
    ],
)
def test_parse_arm_answers_a_wrong_name_with_the_right_ones(text, suggested, listed):
    with pytest.raises(UsageError) as caught:
        parse_arm(text)
    assert repr(text.partition(":")[2].partition("=")[0] or text) in caught.value.what
    assert caught.value.found == (f"Did you mean {suggested}?" if suggested else "")
    assert listed in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("ddp:process_group=mpi", "auto or nccl or gloo"),
        ("mpi:mode=shared_memory", "per_parameter or flat or overlap"),
        ("horovod:controller=nccl", "gloo or mpi"),
        ("ddp:static_graph=maybe", "true or false"),
        *(
            (f"ddp:bucket_cap_mb={size}", "a number above 0")
            for size in ("big", "0", "-1", "nan", "inf", "{1,5}")
        ),
        ("ddp:comm_hook=fp8", "none or fp16 or bf16 or powersgd"),
        *((f"ddp:powersgd_rank={value}", "a whole number from 1") for value in ("0", "1.5", "²")),
        ("ddp:powersgd_start=1", "a whole number from 2"),
    ],
)
def test_parse_arm_answers_a_wrong_value_with_the_right_ones(text, right):
    with pytest.raises(UsageError) as caught:
        parse_arm(text)
    assert text in caught.value.what
    assert repr(text.partition("=")[2]) in caught.value.what
    assert caught.value.remedy == f"Use {right}."


def test_registry_options_name_existing_choices():
    for backend in BACKENDS.values():
        choices = {option.name: option.choices for option in backend.options}
        for option in backend.options:
            assert option.needs is None or option.needs[1] in choices[option.needs[0]]
            assert {*option.strategies, *option.lossy, *option.cuda_only} <= set(option.choices)


@pytest.mark.parametrize("arm", ["manual", "manual:mode=overlap"])
def test_load_without_a_choice_takes_the_backends_strategy(arm):
    assert load("manual", parse_arm(arm).options)[1] is AveragingReplica


@pytest.mark.parametrize(
    "texts",
    [
        ["ddp,ddp"],
        ["ddp,mpi", "ddp"],
        ["ddp:bucket_cap_mb={1,1.0}"],
        ["manual:mode=overlap:bucket_mb=2,manual:bucket_mb=2:mode=overlap"],
    ],
)
def test_parse_arms_refuses_an_arm_named_twice(texts):
    message = refusal(*texts)
    assert "named twice" in message
    assert "--repeats" in message


def test_parse_arms_takes_one_arm_twice_for_an_aa_test():
    assert parse_arms(["mpi", "mpi"], with_aa_test=True) == (Arm("mpi"), Arm("mpi"))
    with pytest.raises(UsageError, match="named twice"):
        parse_arms(["mpi,mpi,ddp"], with_aa_test=True)


# ---- any text ----


@untimed
@given(
    st.lists(arms_of(), max_size=6, unique_by=lambda arm: (arm.backend, frozenset(arm.given.items()))),
    st.integers(0, 6),
)
@example([Arm("ddp", {"bucket_cap_mb": size}) for size in (0.1234567891, 1e22)], 1)
@example([Arm("ddp", {"env.A": "\\"})], 0)
def test_arm_labels_read_back_as_the_arms_in_one_flag_or_many(arms, cut):
    labels = [arm.label for arm in arms]
    assert len(set(labels)) == len(arms)
    for texts in (labels, [",".join(labels)], [",".join(labels[:cut]), ",".join(labels[cut:])]):
        read = parse_arms(texts)
        assert read == tuple(arms)
        assert [arm.label for arm in read] == labels
