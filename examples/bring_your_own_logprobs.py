"""Lists of token ids and log-probs from any engine and any trainer: store them, measure them, check their structure.

    python examples/bring_your_own_logprobs.py

Nothing here needs a model. Say what each side declares: what is not declared cannot be checked.
"""

import tempfile

import samepolicy as sp


def main() -> None:
    run = sp.Run.from_lists(
        prompt_ids=[[1, 15, 9], [1, 15, 9], [1, 7]],
        response_ids=[[5, 6, 2], [5, 8, 8, 2], [4, 2]],
        mask=[[1, 1, 1], [1, 1, 0, 1], [1, 1]],  # 0: a token that the policy did not sample
        rollout_logp=[[-0.51, -1.20, -0.02], [-0.51, -2.31, -0.40, -0.07], [-0.92, -0.11]],
        trainer_logp=[[-0.50, -1.22, -0.02], [-0.52, -2.30, -0.39, -0.07], [-0.90, -0.11]],
        group=["a", "a", "b"],  # responses to one prompt
        finish_reason=["stop", "stop", "stop"],
        rollout=sp.Side(engine="vllm", dtype="bfloat16", sampling=sp.Sampling(), extra={"eos_ids": [2]}),
        trainer=sp.Side(framework="mine", dtype="bfloat16", sampling=sp.Sampling()),
    )

    with tempfile.TemporaryDirectory() as folder:
        for step in range(3):
            sp.write(run, folder, step=step)  # each step is one more file; nothing is rewritten
        stored = sp.read(folder)
        print(stored)
        print("mean abs d by step:")
        for step, summary in sp.measure_by(stored, "step").items():
            print(f"  {step}: {summary['logp_diff']['mean']:.4f} nats over {summary.counts.measured} tokens")

    found = sp.diagnose(run)  # with trainer=sp.engine("hf:PATH") it also measures how large rounding is
    print(f"\n{found.verdict}: {found.sentence}")
    for rung in found.ladder:
        print(f"  {rung}")


if __name__ == "__main__":
    main()
