"""What the terms of a diagnosis mean: verdicts, numbers, proofs, rungs of the ladder, steps of a consistency test."""

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
        "to compare, one side is a copy of the other, or both are far from the model that was given. The next step "
        "says what would settle it. Exit status 3."
    ),
}

NUMBERS = {
    "d": "The log-ratio of a token, log π_trainer - log π_rollout, in nats. 0 where the two policies agree.",
    "floor": (
        "What rounding alone does to a log-ratio, in nats. Measured on this run: each side's declared dtype against "
        "float32, in bins of surprisal, since a token that the model is sure of is rounded less. The pair's floor² is "
        "the sum of both sides'."
    ),
    "G/floor²": (
        "The gap in units of rounding: the token mean of the squared log-ratio, each token capped at 8 of its floors, "
        "over the floor². 1 is what rounding alone does; the limit is 1.5 (2 with fewer than 12 prompts)."
    ),
    "tails": (
        "The share of tokens more than 8 floors apart. They are capped in G/floor², so that one token cannot decide; "
        "more than 5 % of them is a difference by itself."
    ),
    "explained": (
        "The share of the gap above the floor that closes when the named causes are undone together. Read on prompts "
        "that nothing was fitted on; at least 85 % is asked for, and 70 % at the lower end of the interval."
    ),
    "slope": (
        "How large a cause is beside what undoing it predicts: the median over the tokens that it moves clearly. 1 is "
        "exactly as predicted; a cause outside of 0.8 to 1.2 is not named."
    ),
    "ledger": (
        "What the gap is made of: how far each named cause alone moves a token on average, in nats, and what is left. "
        "Rows need not add up to the whole, since causes can pull a token both ways."
    ),
    "residual": "What is left of the gap once every named cause is undone. At the limit or below it is rounding.",
}

PROOFS = {
    "structural": "Ids, masks, constants or tensors prove the cause by themselves, without any forward.",
    "undone": "The reference scores as the cause would have it, and the gap closes.",
    "surprisal": "How likely the sampled tokens were gives a cause away that the recorded log-probs hide.",
    "size": "The error's size and shape alone show it, as for a number format, which no other engine rounds alike.",
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
