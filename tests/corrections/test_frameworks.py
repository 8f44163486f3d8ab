"""Flags of frameworks: what each builds, which flags are refused, and rules that are no arithmetic."""

import logging

import numpy as np
import pytest

from samepolicy import Correction
from samepolicy.corrections import Band, Normalise, OffPolicyMask, Reject, RolloutPresence, Truncate, Veto
from samepolicy.corrections.frameworks import all_frameworks
from samepolicy.errors import InputError
from tests.oracles.correction_batches import correction_batch

INF = float("inf")


@pytest.mark.parametrize(
    ("framework", "flags", "steps"),
    [
        ("openrlhf", {}, ()),
        ("openrlhf", {"is_correction_enable": True}, (Truncate(5.0, below=0.5),)),
        ("openrlhf", {"is_correction_enable": True, "is_correction_type": "icepop"}, (Band(0.5, 5.0),)),
        (
            "openrlhf",
            {"is_correction_enable": True, "is_correction_type": "seq-mask-tis", "is_correction_threshold": (0.9, 1.1)},
            (Band(0.9, 1.1, over="geometric", weight="token"),),
        ),
        ("openrlhf", {"is_correction_enable": True, "policy_loss_type": "gspo"}, ()),
        ("slime", {"use_tis": True}, (Truncate(2.0),)),
        ("slime", {"use_tis": True, "tis_function": "icepop", "tis_clip_low": 0.5}, (Band(0.5, 2.0),)),
        ("slime", {"use_opsm": True}, (OffPolicyMask(1e-4, old="trainer", sign="token"),)),
        (
            "slime",
            {
                "use_tis": True,
                "tis_function": "mis",
                "tis_lower_bound": 0.5,
                "tis_batch_normalize": True,
                "use_rs": True,
                "rs_veto_threshold": 1e-4,
            },
            (
                Truncate(2.0, clamp=20.0, clamp_at="span"),
                Normalise(),
                Reject("ratio", below=0.5, above=2.0, clamp=20.0),
                Veto(below=1e-4),
            ),
        ),
        (
            "nemo_rl",
            {
                "use_importance_sampling_correction": True,
                "truncated_importance_sampling_type": "tis",
                "truncated_importance_sampling_ratio": 2.0,
                "seq_logprob_error_threshold": 1.5,
            },
            (Reject("mult_error", above=1.5, over="sequence"), Truncate(2.0)),
        ),
        (
            "skyrl",
            {
                "tis_ratio_type": "sequence",
                "sequence_mask_metric": "geometric",
                "outlier_token_is_threshold_low": 1e-4,
                "token_mask_is_threshold_low": 0.5,
                "token_mask_is_threshold_high": 2.0,
            },
            (
                Veto(below=1e-4, clamp=20.0),
                Reject("ratio", below=0.5, above=2.0, clamp=20.0),
                Truncate(5.0, over="sequence", clamp=20.0, clamp_at="span", among="kept"),
                Reject(
                    "ratio",
                    below=0.99,
                    above=1.01,
                    over="sequence",
                    reduce="geometric",
                    clamp=20.0,
                    clamp_at="span",
                    among="kept",
                ),
            ),
        ),
        ("prime_rl", {}, (Reject("prob_diff", below=-0.2, above=0.2, sided=True),)),
        ("prime_rl", {"type": "ipo"}, (Reject("abs_prob_diff", above=0.1),)),
        ("areal", {}, (Truncate(INF), Reject("ratio", above=5.0))),
        ("areal", {"action": "clamp", "level": "sequence"}, (Truncate(5.0, over="geometric"),)),
        ("areal", {"metric": "kl_k3", "upper": 1.0}, (Truncate(INF), Reject("k3_inverse", above=1.0))),
        (
            "roll",
            {"enabled": True, "weight_type": "segment", "filters": [{"enabled": True, "agg_type": "geometric"}]},
            (
                Truncate(1.2, over="segment"),
                Reject("ratio", below=0.8, above=1.2, over="sequence", reduce="geometric"),
            ),
        ),
        ("swift", {}, ()),
        ("swift", {"log_rollout_offpolicy_metrics": True}, ()),
        ("verl", {}, ()),
    ],
)
def test_flags_build_these_steps(framework, flags, steps):
    assert getattr(Correction, f"from_{framework}")(**flags).steps == steps


@pytest.mark.parametrize(
    ("framework", "flags", "said"),
    [
        ("verl", {"rollout_is_treshold": 2.0}, "rollout_is_threshold"),
        ("verl", {"rollout_is": "turn"}, "token, sequence"),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": 0.0}, "above 0"),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "2_1"}, "not above its upper"),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "two"}, "lower_upper"),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": True}, "lower_upper|above 0"),
        ("verl", {"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2}, "seq_max_k2"),
        ("verl", {"rollout_rs": "token_k1"}, "rollout_rs_threshold"),
        ("verl", {"rollout_rs": "token_k2", "rollout_rs_threshold": "1_2"}, "upper bound only"),
        ("verl", {"rollout_rs": "token_k1,token_k2,token_k3", "rollout_rs_threshold": "1,2"}, "2 values for 3"),
        ("verl", {"rollout_is_batch_normalize": True}, "needs weights"),
        ("trl", {"vllm_importance_sampling_mode": "token"}, "token_mask"),
        ("trl", {"vllm_importance_sampling_clip_min": 3.0}, "must be below"),
        (
            "trl",
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": None},
            "clip_min",
        ),
        ("trl", {"vllm_importance_sampling_cap": 2.0}, "vllm_importance_sampling_clip_max"),
        ("swift", {"rollout_importance_sampling_mode": "truncate"}, "sequence_mask"),
        ("swift", {"rollout_importance_sampling_threshold": 0}, "above 0"),
        ("swift", {"off_policy_sequence_mask_delta": 0.1, "has_teacher": True}, "teacher"),
        ("swift", {"rollout_importance_sampling_mode": "token_mask", "vllm_version": "0.10.1"}, r"0\.10\.2.*0\.10\.1"),
        ("slime", {"use_rs": True}, "use_tis"),
        ("slime", {"use_tis": True, "tis_function": "mis", "rs_veto_threshold": 0.1}, "use_rs"),
        (
            "slime",
            {"use_tis": True, "tis_function": "mis", "tis_level": "geometric", "tis_batch_normalize": True},
            "geometric",
        ),
        ("openrlhf", {"is_correction_type": "seq"}, "icepop"),
        ("openrlhf", {"is_correction_threshold": (2.0,)}, "low and high"),
        ("openrlhf", {"is_correction_enable": True, "is_correction_threshold": (2.0, 1.0)}, "swap"),
        ("nemo_rl", {"truncated_importance_sampling_type": "tis"}, "use_importance_sampling_correction"),
        (
            "nemo_rl",
            {"truncated_importance_sampling_type": "tis", "use_importance_sampling_correction": True},
            "upper bound",
        ),
        ("prime_rl", {"type": "custom"}, "ipo"),
        ("areal", {"upper": 1.0}, "above 1"),
        ("areal", {"action": "clamp", "metric": "kl_k2"}, "ratio"),
        ("roll", {"filters": [{"agg": "token"}]}, "agg_type"),
        ("m2po", {"M2_budget": 0.0}, "above 0"),
    ],
)
def test_unknown_and_contradictory_flags_are_one_sentence(framework, flags, said):
    with pytest.raises(InputError, match=said) as caught:
        getattr(Correction, f"from_{framework}")(**flags)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_every_framework_has_a_builder_with_its_own_documentation():
    for name, module in all_frameworks().items():
        build = getattr(Correction, f"from_{name}")
        assert build.__doc__ == module.correction.__doc__
        assert "Divides by:" in build.__doc__
    with pytest.raises(AttributeError, match="from_verl"):
        Correction.from_nobody  # noqa: B018


def test_an_old_engine_without_a_mode_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING, logger="samepolicy"):
        Correction.from_swift(log_rollout_offpolicy_metrics=True, vllm_version="0.9.0")
    assert "0.10.2" in caplog.text
    assert Correction.from_swift(rollout_importance_sampling_mode="token_mask", vllm_version="0.10.2rc1").steps


def test_swifts_log_line_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr("samepolicy.corrections.frameworks.swift._said", set())
    with caplog.at_level(logging.INFO, logger="samepolicy"):
        for delta in (0.1, 0.2, None):
            Correction.from_swift(off_policy_sequence_mask_delta=delta)
    assert [r.getMessage() for r in caplog.records] == [
        "offpolicy_sequence_mask: enable",
        "offpolicy_sequence_mask: disable",
    ]


def test_all_ranks_skip_together_count_it_and_say_so_once(caplog):
    ranks = [np.zeros(3), None]
    present = [RolloutPresence(lambda mine: min(int(r is not None) for r in ranks)) for _ in ranks]
    for _ in range(3):
        assert [p(r) for p, r in zip(present, ranks, strict=True)] == [False, False]
    assert [p.skipped for p in present] == [3, 3]
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    ranks[1] = np.zeros(3)
    assert [p(r) for p, r in zip(present, ranks, strict=True)] == [True, True]


def test_swifts_ess_has_the_floor_that_the_page_says():
    data = correction_batch(0, spread=3.0)
    batch = {n: data[n] for n in ("trainer", "rollout", "mask")}
    stats = Correction.from_swift(rollout_importance_sampling_mode="token_truncate")(**batch).stats
    assert stats.flat("swift")["rollout_correction/ess"] >= 4 / 2.5**2
    assert stats.applied.ess_token < 4 / 2.5**2


def test_names_of_frameworks_that_log_nothing_are_refused():
    data = correction_batch(0)
    stats = Correction()(**{n: data[n] for n in ("trainer", "rollout", "mask")}).stats
    with pytest.raises(InputError, match="swift"):
        stats.flat("verl")
    with pytest.raises(InputError, match="mode"):
        stats.flat("swift")
