"""What declared settings say must go wrong, what TRL and verl declare, the doctor, and what ranks put together."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from samepolicy import Monitor, Sampling, Side
from samepolicy.cli.main import status
from samepolicy.integrations import trl_doctor
from samepolicy.integrations.trl import columns
from samepolicy.integrations.trl_sides import rollout_side, trainer_side
from samepolicy.integrations.verl_sides import rollout_side as verl_rollout
from samepolicy.monitor.settings import doubts

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("trl"), pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).resolve().parents[2]


def rollout(extra=None, dtype="float32", **sampling):
    return Side(dtype=dtype, sampling=Sampling(**sampling), extra=extra or {})


def trained(extra=None, dtype="float32", **sampling):
    return Side(dtype=dtype, sampling=Sampling(**sampling), extra=extra or {})


@pytest.mark.parametrize(
    ("engine", "trainer", "names"),
    [
        (rollout(), trained(), []),
        (Side(), Side(), []),
        (rollout({"adapter": "none"}), trained({"adapter": "lora"}), ["adapter"]),
        (rollout({"adapter": "merged"}), trained({"adapter": "lora"}), []),
        (rollout(), trained({"adapter": "lora"}), []),
        (rollout(temperature=0.7, logprobs="raw"), trained(temperature=0.7), ["raw"]),
        (rollout(temperature=1.0, logprobs="raw"), trained(), []),
        (rollout(temperature=0.0, logprobs="raw"), trained(), []),
        (rollout(temperature=0.7), trained(temperature=0.7), []),
        (rollout(temperature=0.7), trained(temperature=1.0), ["temperature"]),
        (rollout(top_p=0.9), trained(), ["support"]),
        (rollout(top_k=20), trained(), ["support"]),
        (rollout(min_p=0.1), trained(), ["support"]),
        (rollout(repetition_penalty=1.1), trained(), ["support"]),
        (rollout({"presence_penalty": 0.5}), trained(), ["support"]),
        (rollout({"presence_penalty": 0.5}, logprobs="raw"), trained(), []),
        (rollout(top_p=0.9), trained(top_p=0.9), []),
        (rollout(dtype="bfloat16"), trained(), ["dtype"]),
        (rollout(dtype="torch.float16"), trained(dtype="fp32"), ["dtype"]),
        (rollout(dtype="bfloat16"), trained(dtype="bf16"), []),
    ],
)
def test_settings_that_cannot_agree_are_named(engine, trainer, names):
    assert list(doubts(rollout=engine, trainer=trainer)) == names


def test_a_monitor_says_them_once_and_as_events(caplog):
    seen = []
    logp, mask = np.full((1, 2), -1.0), np.ones((1, 2))
    with Monitor(rollout=rollout(top_p=0.9), trainer=trained(), loggers=(seen.append,)) as monitor:
        for step in (1, 2):
            monitor(step=step, trainer=logp, rollout=logp, mask=mask)
    assert [len([e for e in s.events if e.startswith("settings: top_p")]) for s in seen] == [1, 0]
    assert len([r for r in caplog.records if "top_p" in r.getMessage()]) == 1


def fake(**given):
    """What the sides read of a trainer."""
    args = SimpleNamespace(bf16=given.pop("bf16", False), fp16=False, cast_lm_head_to_fp32=False)
    network = SimpleNamespace(config=SimpleNamespace(_name_or_path="MODEL"), dtype="torch.float32")
    if given.pop("lora", False):
        network.peft_config = {}
    config = SimpleNamespace(dtype="torch.bfloat16", logprobs_mode=given.pop("mode", "processed_logprobs"))
    engine = SimpleNamespace(
        temperature=0.7,
        top_p=0.9,
        top_k=0,
        min_p=None,
        repetition_penalty=1.0,
        generation_kwargs=given.pop("kwargs", None),
    )
    engine.llm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=config))
    engine.vllm_client = SimpleNamespace(get_server_info=lambda: {"model_config": vars(config)})
    held = {"use_vllm": True, "vllm_mode": "colocate", "temperature": 0.7, **given}
    return SimpleNamespace(
        **held, args=args, model=network, vllm_generation=engine, accelerator=SimpleNamespace(is_main_process=True)
    )


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_trl_trainer_declares_its_engine_and_itself(mode):
    made = fake(lora=True, kwargs={"top_k": 5, "presence_penalty": 0.2}, vllm_mode=mode)
    side, other = rollout_side(made), trainer_side(made)
    assert (side.engine, side.dtype, side.extra) == (
        "vllm",
        "torch.bfloat16",
        {"presence_penalty": 0.2, "adapter": "merged"},
    )
    assert side.sampling == Sampling(temperature=0.7, top_p=0.9, top_k=5)
    assert (other.dtype, other.sampling.temperature, other.extra) == ("torch.float32", 0.7, {"adapter": "lora"})
    assert list(doubts(rollout=side, trainer=other)) == ["dtype", "support"]
    assert trainer_side(fake(bf16=True)).dtype == "bfloat16"


def test_raw_log_probs_are_seen_and_an_engine_of_ones_own_declares_nothing():
    assert rollout_side(fake(mode="raw_logprobs")).sampling.logprobs == "raw"
    assert rollout_side(fake(use_vllm=False)).sampling is None


@pytest.mark.parametrize(
    ("model", "engine", "adapter"),
    [
        ({}, "vllm", None),
        ({"lora_rank": 8}, "vllm", "loaded"),
        ({"lora_rank": 8}, "trtllm", "none"),
        ({"lora": {"rank": 8, "merge": True}}, "trtllm", "merged"),
    ],
)
def test_verl_declares_whether_the_adapter_reaches_its_engine(model, engine, adapter):
    config = {"actor_rollout_ref": {"model": model, "rollout": {"name": engine}}}
    assert verl_rollout(config).extra.get("adapter") == adapter


def test_verl_says_what_its_fsdp_actor_computes_in():
    from samepolicy.integrations.verl_sides import trainer_side as verl_trainer

    actor = {"strategy": "fsdp2", "fsdp_config": {"mixed_precision": {"param_dtype": "fp32"}}}
    assert verl_trainer({"actor_rollout_ref": {"actor": actor}}).dtype == "fp32"
    assert verl_trainer({"actor_rollout_ref": {"actor": {"strategy": "fsdp"}}}).dtype == "bf16"
    assert verl_trainer({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}).dtype is None


def test_in_this_trl_every_place_stands():
    found = trl_doctor.examine()
    assert [check.status for check in found] == ["passed"] * 4
    assert [check.name for check in found][1:] == [f"call site {name}" for name in trl_doctor.PLACES]


class Moved:
    """A trainer of tomorrow: one method is called otherwise, one reads other names, one is gone."""

    def _prepare_inputs(self, batch):
        return self.generate(batch)

    def _generate_and_score_completions(self, inputs):
        return {"sampling_per_token_logps": 0, "old_per_token_logps": 0, "completion_mask": 0}

    def compute_loss(self, model, inputs):
        return self._compute_loss(model, inputs)

    def _compute_loss(self, model, inputs):
        return inputs["importance_sampling_ratio"], inputs["tool_mask"], inputs["completion_mask"]


def test_places_that_moved_are_named():
    found = trl_doctor.faults(Moved)
    assert (
        "_prepare_inputs does not call self._generate_and_score_completions" in found["_generate_and_score_completions"]
    )
    assert "does not read self.vllm_importance_sampling_correction" in found["_compute_loss"]
    assert "Moved has no get_off_policy_mask" in found["get_off_policy_mask"]


def test_the_command_prints_and_returns_a_status(capsys, monkeypatch):
    assert status(["doctor", "trl"]) == 0
    assert "call site" in capsys.readouterr().out
    monkeypatch.setattr(trl_doctor, "faults", lambda trainer: {"_compute_loss": "it moved"})
    assert status(["doctor", "trl", "--json"]) == 1
    assert "failed" in [check["status"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert status(["doctor", "trl", "config.yaml"]) == 2
    assert "arguments of `attach`" in capsys.readouterr().err


def test_columns_are_those_of_a_run():
    logp = np.log([[0.5, 0.25], [0.5, 0.5]])
    batch = {
        "prompt_ids": np.array([[0, 7], [8, 9]]),
        "prompt_mask": np.array([[0, 1], [1, 1]]),
        "completion_ids": np.array([[1, 2], [3, 4]]),
        "completion_mask": np.array([[1, 1], [1, 0]]),
        "advantages": np.array([1.0, -1.0]),
        "old_per_token_logps": logp,
        "sampling_per_token_logps": logp - 0.1,
        "ref_per_token_logps": logp,
    }
    found = columns(batch)
    assert [row.tolist() for row in found.pop("prompt_ids")] == [[7], [8, 9]]
    assert set(found) == {"trainer", "rollout", "mask", "advantage", "ref_logp", "response_ids"}
    assert columns({}) == {"trainer": None, "rollout": None, "mask": None}


RANK = """
import sys, json, numpy as np, torch
from accelerate import Accelerator
from samepolicy import Correction, Truncate
from samepolicy.integrations import trl_ranks as ranks
one = Accelerator(cpu=True)
rank = one.process_index
rows = {"completion_mask": torch.ones(2, 2 + rank, dtype=torch.long), "advantages": torch.full((2,), float(rank)),
        "prompt_ids": torch.full((2, 3 - rank), rank + 1), "prompt_mask": torch.ones(2, 3 - rank, dtype=torch.long)}
whole = ranks.gathered(one, rows)
logp = np.log(np.full((2, 3), 0.5))
stats = Correction(Truncate(2.0))(trainer=logp, rollout=logp - rank, mask=np.ones((2, 3))).stats
keep = torch.tensor([[True, True], [False, rank == 0]])
found = {"least": ranks.least(one, 1 - rank), "mask": whole["completion_mask"].tolist(),
         "prompts": whole["prompt_ids"].tolist(), "advantages": whole["advantages"].tolist(),
         "tokens": ranks.total(one, stats).tokens, "top": ranks.total(one, stats).raw.ratio_max,
         "share": ranks.share(one, torch.ones(2, 2), keep)}
if rank == 0:
    print("FOUND", json.dumps(found))
torch.distributed.destroy_process_group()
"""


def test_two_ranks_are_put_together(free_port):
    import os

    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    common |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    call = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **call
        )
        for rank in (0, 1)
    ]
    out, err = running[0].communicate(timeout=300)
    running[1].communicate(timeout=300)
    assert running[0].returncode == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("FOUND")]
    found = json.loads(line[6:])
    assert found == {
        "least": 0,
        "mask": [[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]],
        "prompts": [[1, 1, 1], [1, 1, 1], [0, 2, 2], [0, 2, 2]],
        "advantages": [0.0, 0.0, 1.0, 1.0],
        "tokens": 12,
        "top": pytest.approx(np.e),
        "share": 0.25,
    }


@pytest.fixture
def free_port():
    """A port that nobody listens on."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]
