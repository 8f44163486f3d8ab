"""Check two engines for being one policy, keep the run, and look at it again; the toy engine stands in for yours.

    python examples/check_two_engines.py

The toy needs no torch. For a real model write sp.engine("hf:PATH", dtype="bfloat16").
"""

import tempfile

import samepolicy as sp

PROMPTS = [f"Question {i}: what is {i} times 7?" for i in range(12)]


def main() -> None:
    rollout = sp.engine("toy:", dtype="bfloat16")
    sampling = sp.Sampling(max_tokens=24)

    print("A healthy trainer:")
    healthy = sp.engine("toy:", dtype="bfloat16")
    found = sp.check(rollout=rollout, trainer=healthy, prompts=PROMPTS, sampling=sampling)
    print(found, "\n")

    print("A trainer that reads its logits one position too late:")
    shifted = sp.engine("toy:", dtype="bfloat16", shift=1)
    found = sp.check(rollout=rollout, trainer=shifted, prompts=PROMPTS, sampling=sampling)
    print(found, "\n")

    with tempfile.TemporaryDirectory() as folder:
        sp.write(found.run, folder)
        again = sp.diagnose(sp.read(folder))  # all that the verdict needs was recorded
        print("Read back from disk:", again.verdict)
        for label, summary in sp.measure_by(again.run, "position").items():
            print(f"  position {label:>5}: mean abs d {summary['logp_diff']['mean']:.3f} nats")


if __name__ == "__main__":
    main()
