"""Golden files of other tools, made by the tools' own writers (golden/make.py): every value comes back."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.formats import all_formats, targets
from tests.records import truth
from tests.records.strategies import plain

GOLDEN = Path(__file__).parent / "golden"
TOKENS = {
    "prompt_ids": truth.PROMPTS, "response_ids": truth.RESPONSES, "rollout_logp": truth.ROLLOUT,
    "trainer_logp": truth.TRAINER,
}  # fmt: skip


def check_tokens(run: sp.Run, *names: str) -> None:
    """The columns of tokens are the truth."""
    for name in names or TOKENS:
        assert plain(run[name]) == TOKENS[name], name
    assert plain(run.mask) == [[bool(m) for m in row] for row in truth.MASK]


def each_token(values: list[float]) -> list[list[float]]:
    """One value per response, repeated over its tokens."""
    return [[v] * len(r) for v, r in zip(values, truth.RESPONSES, strict=True)]


def test_verls_rollouts_as_text() -> None:
    run = sp.import_run(GOLDEN / "verl_rollout")
    assert run["text"].tolist() == truth.TEXT
    assert run["prompt_text"].tolist() == truth.PROMPT_TEXT
    assert (run["reward"].tolist(), run["step"].tolist()) == (truth.REWARD, [truth.STEP] * 3)
    assert (run["sample"].tolist(), run["group"].tolist()) == ([0, 1, 2], ["a", "a", "b"])
    assert (run["acc"].tolist(), "pred" in run) == ([True, False, True], False)


def test_nemo_rls_training_data(tmp_path: Path) -> None:
    run = sp.import_run(GOLDEN / "nemo_rl")
    check_tokens(run)
    spread = [[a * m for m in row] for a, row in zip(truth.ADVANTAGE, truth.MASK, strict=True)]
    assert plain(run["advantage"]) == spread
    assert (run["reward"].tolist(), run["text"].tolist()) == (truth.REWARD, truth.TEXT)
    assert (run["step"].tolist(), run["sample"].tolist()) == ([truth.STEP] * 3, [0, 1, 2])
    lines = (GOLDEN / "nemo_rl" / "train_data_step7.jsonl").read_text().splitlines()
    left_out = json.loads(lines[1]) | {"sample_loss_mask": [0.0]}
    (tmp_path / "train_data_step10.jsonl").write_text(json.dumps(left_out) + "\n")
    (tmp_path / "train_data_step9.jsonl").write_text(lines[0] + "\n")
    both = sp.read(tmp_path)
    assert (both["step"].tolist(), plain(both.mask)) == ([9, 10], [[True] * 4, [False] * 3])


def test_prime_rls_token_export(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = [GOLDEN / "prime_rl", GOLDEN / "prime_rl" / "token_exports"]
    places += [places[1] / "step_7", places[1] / "step_7" / "rank_0.jsonl"]
    runs = [sp.import_run(place) for place in places]
    assert all(run == runs[0] for run in runs)
    check_tokens(runs[0])
    assert not caplog.records
    entropy = runs[0]["trainer_entropy"].values
    assert np.isnan(entropy[0])
    assert (entropy[1:] == 0.5).all()
    assert (runs[0]["step"].tolist(), runs[0]["sample"].tolist()) == ([7] * 3, [0, 1, 2])
    shutil.copytree(places[2], tmp_path / "step_10")
    shutil.copytree(places[2], tmp_path / "step_9")
    (tmp_path / "step_9" / "STABLE").unlink()
    text = (tmp_path / "step_10" / "rank_0.jsonl").read_text()
    (tmp_path / "step_10" / "rank_1.jsonl").write_text(
        text.replace('"rank":0', '"rank":1').replace('step":7', 'step":10')
    )
    run = sp.read(tmp_path)
    assert run["rank"].tolist() == [0] * 6 + [1] * 3
    assert ["step_9 has no mark STABLE" in r.getMessage() for r in caplog.records] == [True]
    (tmp_path / "step_10" / "rank_1.jsonl").write_text(text.replace('"schema_version":1', '"schema_version":2'))
    with pytest.raises(CorruptFileError, match=r"rank_1\.jsonl has schema_version 2"):
        sp.read(tmp_path)


def test_trls_completions() -> None:
    run = sp.import_run(GOLDEN / "trl")
    assert len(run) == 4
    words = [[float(len(t.split()))] for t in run["text"].tolist()]
    assert [[v] for v in run["longest"].tolist()] == words
    assert run["step"].tolist() == [1] * 4
    assert set(run["prompt_text"].tolist()) <= set(truth.PROMPT_TEXT)
    groups = run["longest"].reshape(2, 2)
    expected = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(run["completion_advantage"].reshape(2, 2), expected, rtol=1e-5)
    mapped = sp.import_run(GOLDEN / "trl", columns={"reward": "longest"})
    assert mapped["reward"].tolist() == run["longest"].tolist()
    assert "longest" not in mapped


def test_msprobes_saved_tensors(tmp_path: Path) -> None:
    run = sp.import_run(GOLDEN / "msprobe")
    check_tokens(run, "rollout_logp", "trainer_logp", "response_ids")
    assert (run["step"].tolist(), run["micro_step"].tolist()) == ([7] * 3, [0, 0, 1])
    folder = tmp_path / "data"
    shutil.copytree(GOLDEN / "msprobe" / "data", folder)
    for file in sorted((folder / "old_log_probs").rglob("*.npy")):
        file.rename(file.with_name("lp.npy"))
    (folder / "old_log_probs").rename(folder / "lp")
    assert "trainer_logp" not in sp.import_run(tmp_path)
    assert sp.import_run(folder, columns={"trainer_logp": "lp"}) == run.with_columns(trainer_logp=run["trainer_logp"])
    with pytest.raises(InputError, match="but not nothing; name each column"):
        sp.import_run(folder, columns={"trainer_logp": "nothing"})


@pytest.mark.parametrize("name", ["completion", "chat"])
def test_vllms_responses(name: str) -> None:
    path = GOLDEN / "vllm_response" / f"{name}.json"
    reply, run = json.loads(path.read_text()), sp.import_run(path)
    choices = reply["choices"]
    assert (len(run), run["sample"].tolist(), run["group"].tolist()) == (2, [0, 1], [0, 0])
    assert run["finish_reason"].tolist() == [c["finish_reason"] for c in choices]
    assert run.rollout.model == "SmolLM2-135M-Instruct"
    if name == "completion":
        assert plain(run["response_ids"]) == [c["token_ids"] for c in choices]
        assert plain(run["prompt_ids"]) == [[1, 2, 3, 4]] * 2
        logp = [c["logprobs"]["token_logprobs"] for c in choices]
    else:
        assert plain(run["token_text"]) == [[t["token"] for t in c["logprobs"]["content"]] for c in choices]
        assert run["text"].tolist() == [c["message"]["content"] for c in choices]
        logp = [[t["logprob"] for t in c["logprobs"]["content"]] for c in choices]
    assert plain(run["rollout_logp"]) == [np.float32(row).tolist() for row in logp]


def test_token_ids_in_names_and_minus_infinity(tmp_path: Path) -> None:
    logprobs = {"tokens": ["token_id:5", "token_id:6"], "token_logprobs": [-0.5, -9999.0]}
    choice = {"index": 0, "text": "ab", "finish_reason": "stop", "logprobs": logprobs}
    lines = [{"choices": [choice]}, {"choices": [choice | {"index": 1}]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = sp.import_run(tmp_path / "a.jsonl")
    assert plain(run["response_ids"]) == [[5, 6], [5, 6]]
    assert run["rollout_logp"].values.tolist() == [-0.5, -np.inf] * 2
    assert (run["group"].tolist(), "token_text" in run) == ([0, 1], False)
    (tmp_path / "b.json").write_text(json.dumps({"choices": [choice | {"logprobs": None}]}))
    with pytest.raises(InputError, match=r"b\.json: .*no log-probs; ask for them"):
        sp.import_run(tmp_path / "b.json")


def test_sglangs_responses(tmp_path: Path) -> None:
    replies = []
    for prompt, ids, logp, end in zip(truth.PROMPTS, truth.RESPONSES, truth.ROLLOUT, truth.FINISH, strict=True):
        meta = {"prompt_tokens": len(prompt), "finish_reason": {"type": end}, "weight_version": "4"}
        meta["input_token_logprobs"] = [[None, i, None] for i in prompt]
        meta["output_token_logprobs"] = [[p, i, f"<{i}>"] for p, i in zip(logp, ids, strict=True)]
        replies.append({"text": "…", "output_ids": ids, "meta_info": meta})
    (tmp_path / "a.json").write_text(json.dumps(replies))
    run = sp.import_run(tmp_path / "a.json")
    for name in ("prompt_ids", "response_ids", "rollout_logp"):
        assert plain(run[name]) == TOKENS[name]
    assert (run["finish_reason"].tolist(), run.rollout.engine) == (truth.FINISH, "sglang")
    assert run["token_text"][2].tolist() == ["<4>"]
    assert set(run["policy_version"].values.tolist()) == {4}


@pytest.mark.parametrize("target", ["jsonl", "parquet", "verl_npy"])
@pytest.mark.parametrize("name", ["nemo_rl", "prime_rl", "msprobe"])
def test_golden_files_go_out_and_come_back(tmp_path: Path, name: str, target: str) -> None:
    run = sp.import_run(GOLDEN / name)
    out = tmp_path / ("out" if target == "verl_npy" else f"out.{target}")
    targets()[target].write(run, out)
    back = sp.import_run(out)
    if target == "parquet":
        assert back == run
    elif target == "jsonl":
        assert {n: plain(c) for n, c in back.columns.items()} == {n: plain(c) for n, c in run.columns.items()}
    else:
        t, r = (run[f"{side}_logp"].values.astype(np.float32) for side in ("trainer", "rollout"))
        assert back["prob_diff"].values.tolist() == np.where(run.mask.values, np.abs(np.exp(t) - np.exp(r)), 0).tolist()
        assert plain(back.mask) == plain(run.mask)
    with pytest.raises(InputError, match="there already|exists already"):
        targets()[target].write(run, out)


@pytest.mark.parametrize("name", ["verl_rollout", "nemo_rl", "prime_rl"])
def test_a_line_cut_off_names_file_and_line_and_skips_only_that_file(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "dump")
    (file,) = (f for f in (tmp_path / "dump").rglob("*.jsonl"))
    bad = file.with_name(file.name.replace("7", "8").replace("rank_0", "rank_1"))
    bad.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptFileError, match=rf"{bad.name} .*on line 3, its last .*still being written"):
        sp.import_run(tmp_path / "dump")
    said: list[CorruptFileError] = []
    run = sp.import_run(tmp_path / "dump", on_bad=said.append)
    assert (len(run), [bad.name in str(e) for e in said]) == (3, [True])
    bad.write_text('{"input": 1, "output": 2, "score": 3, "step": 4, "schema_version": 1}\n')
    with pytest.raises(CorruptFileError, match=r"is not as its writer builds it"):
        named_otherwise(tmp_path / "dump", name)


def named_otherwise(path: Path, name: str) -> None:
    """Import; verl's own lines need no more than these four fields, so one is taken away."""
    for file in path.rglob("8.jsonl"):
        file.write_text('{"input": 1}\n')
    sp.import_run(path, kind=name)


def test_every_format_says_where_it_is_from_and_how_far_it_is_checked() -> None:
    others = {n: f.__doc__ or "" for n, f in all_formats().items() if n not in ("csv", "jsonl", "parquet", "verl_npy")}
    assert all("Source: " in doc and ("Checked against" in doc or "Unverified" in doc) for doc in others.values())


def test_the_page_lists_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text("utf-8")
    table = page[page.index("| format |") :].splitlines()
    assert [name for name in all_formats() if not any(f"`{name}`" in line for line in table)] == []
