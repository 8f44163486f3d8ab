"""attach on real `GRPOTrainer`s: what it sees, what it changes in the loss, and where it logs.

See `trl_trainers` for what is real: all of TRL is; the engine is a plain sampling loop over the trainer's own network.
"""

import numpy as np
import pytest

from samepolicy import Correction, OffPolicyMask, Reject, Truncate
from samepolicy.integrations import trl
from samepolicy.records.store import read
from tests.integrations.trl_trainers import Engine, by_hand, logged, said, trainer, watched

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("trl"), pytest.mark.filterwarnings("ignore")]
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
RATIO = "importance_sampling_ratio"


@pytest.mark.parametrize("vllm", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_the_loss_reads_the_weights_of_the_mode(mode, vllm, tmp_path, monkeypatch):
    made = trainer(tmp_path / "t", Engine(spread=0.3), use_vllm=vllm, loss_type="grpo")
    above = 1.1 if mode.startswith("token") else 1.01  # a mean over a sequence lies nearer to 1
    switches = {"rollout_importance_sampling_mode": mode, "rollout_importance_sampling_threshold": above}
    attached = trl.attach(made, monitor=tmp_path / "run", **switches)
    seen = watched(attached, monkeypatch)
    made.train()
    attached.detach()
    assert attached.failed == 0
    run = read(tmp_path / "run")
    pairs = [run[name] for name in ("trainer_logp", "rollout_logp", "weight")]
    wanted = {}
    for i, ids in enumerate(run["response_ids"]):
        d = [ragged[i] for ragged in pairs]
        weights = by_hand(mode, above, d[0], d[1])
        np.testing.assert_allclose(d[2], weights, rtol=1e-5)
        wanted[tuple(ids), tuple(np.float32(d[1]))] = weights
    changed = 0
    for batch in seen:
        for i, keep in enumerate(batch["completion_mask"].astype(bool)):
            key = tuple(batch["completion_ids"][i][keep]), tuple(batch["sampling_per_token_logps"][i][keep])
            np.testing.assert_allclose(batch[RATIO][i][keep], wanted[key], rtol=1e-5)
            assert (batch[RATIO][i][~keep] == 1).all()
            changed += sum(w in (0.0, above) for w in wanted[key])
        # the first step on a batch has a policy ratio of 1, so the loss is a plain mean of -A·w
        mask, advantage = batch["completion_mask"], batch["advantages"][:, None]
        plain = (-advantage * batch[RATIO] * mask).sum(1) / mask.sum(1)
        assert batch["loss"] == pytest.approx(plain.mean(), abs=1e-5)
    assert changed, "no weight was bounded, so nothing was tested"
    assert [entry["rollout_correction/is_weight_mean"] for entry in logged(made)] == pytest.approx(
        [np.concatenate([wanted[k] for k in wanted if k[0] in ids]).mean() for ids in responses(seen)], rel=1e-5
    )
    if vllm:
        low = [float(batch[RATIO][batch["completion_mask"] == 1].min()) for batch in seen]
        assert [entry[f"sampling/{RATIO}/min"] for entry in logged(made)] == pytest.approx(low)


def responses(seen):
    """The responses of each step."""
    return [
        {tuple(row[keep == 1]) for row, keep in zip(b["completion_ids"], b["completion_mask"], strict=True)}
        for b in seen
    ]


@pytest.mark.parametrize("vllm", [False, True])
def test_without_a_correction_training_is_trls_bit_for_bit(vllm, tmp_path):
    results = []
    for on in (False, True):
        made = trainer(tmp_path / f"t{on}", Engine(spread=0.3), use_vllm=vllm)
        if on:
            attached = trl.attach(made, monitor=tmp_path / "run", log_rollout_offpolicy_metrics=True)
        made.train()
        losses = [entry["loss"] for entry in logged(made)]
        results.append((losses, [p.detach().clone() for p in made.model.parameters()]))
    assert results[0][0] == results[1][0]
    assert all((a == b).all() for a, b in zip(results[0][1], results[1][1], strict=True))
    assert logged(made)[0]["rollout_correction/k3_kl"] > 0
    assert attached.failed == 0
    attached.detach()
    assert "_compute_loss" not in vars(made)


@pytest.mark.parametrize("divide_by", ["kept", "mask"])
def test_a_token_that_is_dropped_leaves_the_loss(divide_by, tmp_path, monkeypatch):
    made = trainer(tmp_path / "t", Engine(spread=0.3), loss_type="grpo", max_steps=1)
    attached = trl.attach(made, correction=Correction(Reject("ratio", above=1.2, below=0.8)), divide_by=divide_by)
    seen = watched(attached, monkeypatch)
    made.train()
    attached.detach()
    (batch,) = seen
    kept = (batch["completion_mask"] * batch["tool_mask"]) if divide_by == "kept" else batch["completion_mask"]
    plain = (-batch["advantages"][:, None] * batch[RATIO] * kept).sum(1) / np.maximum(kept.sum(1), 1)
    assert batch["loss"] == pytest.approx(plain.mean(), abs=1e-5)
    dropped = logged(made)[0]["samepolicy/correction/dropped/0_Reject"]
    assert dropped == ((batch["completion_mask"] == 1) & (batch[RATIO] == 0)).sum() > 0
    assert bool(kept.sum() == batch["completion_mask"].sum()) is (divide_by == "mask")


@pytest.mark.parametrize("divide_by", ["kept", "mask"])
def test_the_off_policy_mask_uses_the_current_log_probs(divide_by, tmp_path, monkeypatch):
    made = trainer(tmp_path / "t", Engine(spread=0.3), loss_type="grpo", num_iterations=2, max_steps=2)
    attached = trl.attach(made, correction=Correction(Truncate(2.0), OffPolicyMask(0.02)), divide_by=divide_by)
    calls, theirs = [], attached._theirs["get_off_policy_mask"]

    def watch(**given):
        calls.append({n: v.detach().numpy().copy() for n, v in given.items() if hasattr(v, "detach")})
        return theirs(**given)

    monkeypatch.setitem(attached._theirs, "get_off_policy_mask", watch)
    seen = watched(attached, monkeypatch)
    made.train()
    attached.detach()
    assert attached.failed == 0
    shares, moved = [], []
    for call, batch in zip(calls, seen, strict=True):
        mask, advantage = call["mask"], batch["advantages"]
        away = ((call["sampling_per_token_logps"] - call["per_token_logps"]) * mask).sum(1) / mask.sum(1)
        drop = (away > 0.02) & (advantage < 0)
        shares.append(drop.mean())
        moved.append(call["per_token_logps"])
        left = mask * ~drop[:, None]
        divisor = np.maximum(left.sum(1), 1) if divide_by == "kept" else mask.sum(1)
        ratio = np.exp(call["per_token_logps"] - batch.get("old_per_token_logps", call["per_token_logps"]))
        each = np.minimum(ratio * advantage[:, None], np.clip(ratio, 0.8, 1.2) * advantage[:, None])
        assert batch["loss"] == pytest.approx((-(each * batch[RATIO] * left).sum(1) / divisor).mean(), abs=1e-5)
    assert [e["samepolicy/correction/off_policy_dropped_sequences"] for e in logged(made)] == pytest.approx(shares)
    assert max(shares) > 0
    assert not np.allclose(moved[0], moved[1]), "the second iteration has to see a policy that moved"
    assert made.off_policy_mask_threshold is None


def test_trls_own_switches_are_as_they_were(tmp_path):
    made = trainer(tmp_path / "t", Engine(spread=0.3), max_steps=1)
    attached = trl.attach(made, rollout_importance_sampling_mode="token_mask", off_policy_sequence_mask_delta=0.1)
    made.train()
    attached.detach()
    assert (made.use_vllm, made.off_policy_mask_threshold) == (False, None)


def test_a_wrong_temperature_raises_the_alarm_at_step_1(tmp_path, caplog):
    alarms = {}
    for name, sampled in (("right", 0.6), ("wrong", 1.0)):
        made = trainer(tmp_path / name, Engine(temperature=sampled), temperature=0.6, use_vllm=True, max_steps=1)
        attached = trl.attach(made)
        made.train()
        attached.detach()
        alarms[name] = logged(made)[0]["samepolicy/monitor/alarms"]
    assert alarms["right"] == 0
    assert alarms["wrong"] >= 3
    assert any("alarm at step 1" in line for line in said(caplog))


def test_tokens_of_a_tool_are_neither_measured_nor_trained_on(tmp_path, monkeypatch):
    made = trainer(tmp_path / "t", Engine(spread=0.1, mask=True), max_steps=1)
    attached = trl.attach(made, correction=Correction(Reject("ratio", above=1.05)))
    seen = watched(attached, monkeypatch)
    made.train()
    attached.detach()
    half = sum((np.arange(n) % 2 == 0).sum() for n in seen[0]["completion_mask"].sum(1))
    assert logged(made)[0]["samepolicy/correction/tokens"] == half
    assert (seen[0]["tool_mask"][:, 1::2] * seen[0]["completion_mask"][:, 1::2] == 0).all()


def test_pictures_and_alarms_go_where_the_trainer_reports_to(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    engine = Engine(temperature=1.0)
    made = trainer(tmp_path / "t", engine, temperature=0.5, use_vllm=True, report_to=["tensorboard"])
    attached = trl.attach(made)
    made.train()
    attached.detach()
    assert attached.monitor._writer.failed == 0, attached.monitor._say.said
    (folder,) = {file.parent for file in (tmp_path / "tb").rglob("*tfevents*")}
    read_back = EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0}).Reload()
    tags = read_back.Tags()
    assert [event.step for event in read_back.Scalars("train/samepolicy/k3/mean")] == [1, 2]
    assert (tags["images"], tags["histograms"]) == (["samepolicy/heat_map"], ["samepolicy/log_ratio"])
    text = b"".join(e.tensor_proto.string_val[0] for e in read_back.Tensors("samepolicy/events/text_summary"))
    assert b"alarm: " in text
    assert attached.monitor.loggers == ()


@pytest.mark.parametrize("name", ["TensorBoard", "Wandb", "MLflow", "SwanLab", "Trackio"])
def test_the_callbacks_of_transformers_say_that_nothing_is_open_yet(name):
    from transformers import integrations

    from samepolicy.integrations.trl_loggers import HANDLES, NAMES

    callback = getattr(integrations, f"{name}Callback")()
    assert HANDLES[f"{name}Callback"](callback) is None
    assert NAMES[f"{name}Callback"] == name.lower()
