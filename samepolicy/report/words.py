"""What the terms of a diagnosis mean: verdicts, rungs of the ladder, and the steps of a consistency test."""

VERDICTS = {
    "same": (
        "The two policies are one, as far as float32 can tell: structure passed and the root mean square of the "
        "log-ratio is at most 1e-4 nats, no token left out. Exit status 0."
    ),
    "numerics": (
        "The two policies agree within rounding. The gap G is the token mean of the squared log-ratio, each token "
        "capped at 8 of its floors; the whole 95 % interval of G / floor² lies at or below 1.5 (2 with fewer than 12 "
        "prompts). The floor is measured on this very run: each side's declared dtype against float32. Exit status 0."
    ),
    "different": (
        "More than rounding: the whole interval of G / floor² lies above the limit, or a structural test failed "
        "that proves a fault by itself. Exit status 1."
    ),
    "inconclusive": (
        "The data cannot place the gap: its interval lies across the limit, the floor is not known, there is nothing "
        "to compare, or one side is a copy of the other. The next step says what would settle it. Exit status 3."
    ),
}

RUNGS = {
    "tokens": (
        "Both sides speak of the same response ids. Text that is decoded and encoded again may give other ids, and "
        "a tool's or a template's extra end token makes lengths differ by one."
    ),
    "template": "Both sides were given the same prompt ids, so the same chat template and the same special tokens.",
    "shift": (
        "Response token i of a prompt of m tokens is predicted by the logits at position m-1+i. A slice from m on "
        "pairs every token with the log-prob of the next one."
    ),
    "mask": (
        "The response mask holds exactly the tokens that the policy sampled, and the prompt is hidden from the loss "
        "but not from attention."
    ),
    "sampling": (
        "Both sides apply the same temperature, top-p, top-k and penalties to the log-probs that they record; "
        "engines may return them before any of these."
    ),
    "positions": "Both sides number the positions alike and scale rotary embeddings alike, padding or not.",
    "weights": "Both sides hold the same weights: the engine got the last update, with adapters merged the same way.",
    "routing": "In a mixture of experts, both sides send a token to the same experts; without experts it passes.",
    "numerics": "What is left is rounding: the gap is no larger than the floor measured on this run.",
}

STEPS = {
    "fixed prompts": "Prompts are kept as token ids, so that both sides start from the same context.",
    "sample and keep all of it": (
        "The rollout engine samples, and prompt ids, response ids, log-probs, masks, positions and sampling "
        "parameters are kept."
    ),
    "neutral processors": (
        "Temperature 1, top-p 1, top-k off and penalty 1, unless told otherwise, so that raw and processed log-probs "
        "are the same thing."
    ),
    "same weights": "The trainer holds the weights that sampled.",
    "score prompt + response": "The trainer scores the very ids that were sampled in one teacher-forced forward.",
    "align response token i with logits m-1+i": "Each token is read from the logits at the position before it.",
    "compare d and ratio": "d = log π_trainer - log π_rollout of each token, and ratio = exp(d).",
    "verdict": "The gap is judged against the rounding floor of this run: same, numerics, different, inconclusive.",
}
