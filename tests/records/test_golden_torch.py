"""Golden files that need torch: slime's and miles' .pt files and SkyRL's pickle, and what in them is refused."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError
from tests.records import truth
from tests.records.strategies import plain
from tests.records.test_golden import GOLDEN, check_tokens, each_token

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", ["slime", "miles", "skyrl"])
def test_training_dumps(name: str) -> None:
    run = sp.import_run(GOLDEN / name, unsafe_pickle=True)
    check_tokens(run)
    assert plain(run["advantage"]) == each_token(truth.ADVANTAGE)
    assert run["reward"].tolist() == truth.REWARD
    assert (run["sample"].tolist(), run["step"].tolist()) == ([0, 1, 2], [truth.STEP] * 3)
    assert run.info.get("copies", 3) == 3


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_rollout_dumps(name: str) -> None:
    run = sp.import_run(GOLDEN / name / "rollout_data" / f"{truth.STEP}.pt")
    check_tokens(run, "prompt_ids", "response_ids", "rollout_logp")
    assert "trainer_logp" not in run
    assert (run["finish_reason"].tolist(), run["group"].tolist()) == (truth.FINISH, [0, 0, 1])
    assert (run["text"].tolist(), run["prompt_text"].tolist()) == (truth.TEXT, truth.PROMPT_TEXT)
    assert set(run["policy_version"].values.tolist()) == {3}


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_a_pt_file_with_code_in_it_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    torch.save({"rollout_id": 1, "samples": [Bomb(tmp_path / "ran")]}, tmp_path / "1.pt")
    with pytest.raises(CorruptFileError, match=r"1\.pt holds Python objects .*could run code"):
        sp.import_run(tmp_path)
    (tmp_path / "1.pt").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CorruptFileError, match=r"1\.pt holds Python objects .*could run code"):
        sp.import_run(tmp_path / "1.pt", kind="slime")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_needs_the_flag_and_even_then_only_what_skyrl_writes_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a pickle, .* --unsafe-pickle"):
        sp.import_run(GOLDEN / "skyrl")
    file = tmp_path / "global_step_1_training_input.pkl"
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CorruptFileError, match=r"holds posix\.system, which .* could run code"):
        sp.import_run(tmp_path, unsafe_pickle=True)
    assert not (tmp_path / "ran").exists()
    file.write_bytes((GOLDEN / "skyrl" / "global_step_7_training_input.pkl").read_bytes()[:-100])
    with pytest.raises(CorruptFileError, match="truncated or damaged"):
        sp.import_run(tmp_path, unsafe_pickle=True)


def test_shards_of_context_parallelism_and_truncated_files_are_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "miles" / "train_data", tmp_path / "t")
    content = torch.load(tmp_path / "t" / "7_0.pt", weights_only=True)
    torch.save(content | {"cp_size": 2}, tmp_path / "t" / "7_0.pt")
    with pytest.raises(InputError, match=r"7_0\.pt is one of 2 context-parallel shards"):
        sp.import_run(tmp_path / "t")
    torch.save(content, tmp_path / "t" / "7_0.pt")
    (tmp_path / "t" / "7_1.pt").write_bytes((GOLDEN / "miles" / "train_data" / "7_1.pt").read_bytes()[:2000])
    said: list[CorruptFileError] = []
    run = sp.import_run(tmp_path / "t", on_bad=said.append)
    assert (len(run), "trainer_logp" in run, len(said)) == (3, False, 1)
    assert np.isfinite(run["rollout_logp"].values).all()


def test_a_response_that_lacks_a_column_is_not_filled(tmp_path: Path) -> None:
    content = torch.load(GOLDEN / "slime" / "rollout_data" / "7.pt", weights_only=False)
    content["samples"][1]["rollout_log_probs"] = None
    content["samples"][1]["reward"] = {"accuracy": 1.0}
    torch.save(content, tmp_path / "7.pt")
    run = sp.import_run(tmp_path)
    assert set(run.info["left_out"]) == {"rollout_logp", "reward"}
    assert not {"rollout_logp", "reward"} & set(run.columns)
