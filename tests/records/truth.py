"""Three made-up responses that every golden file holds, as far as its format can."""

import numpy as np

STEP = 7
PROMPTS = [[11, 12, 13], [21, 22], [31, 32, 33, 34]]
RESPONSES = [[5, 6, 7, 2], [8, 9, 10], [4]]
MASK = [[1, 1, 1, 1], [1, 0, 1], [1]]
ROLLOUT = [[-0.5, -1.25, -0.0625, -2.0], [-0.75, 0.0, -3.5], [-0.125]]
TRAINER = [[-0.5, -1.125, -0.0625, -2.25], [-1.0, 0.0, -3.5], [-0.25]]
ADVANTAGE = [1.0, -0.5, 0.25]
REWARD = [1.0, 0.0, 0.5]
TEXT = ["four tokens", "three with a tool's", "one"]
PROMPT_TEXT = ["What?", "Why?", "Wherefore?"]
FINISH = ["stop", "length", "stop"]


def padded(rows: list[list[float]], width: int, *, left: bool = False) -> np.ndarray:
    """Rows of one width, zeros where they are shorter."""
    return np.array([[0] * (width - len(r)) + r if left else r + [0] * (width - len(r)) for r in rows])


def whole(values: list[list[float]]) -> list[list[float]]:
    """Values of responses with zeros for the prompt before them."""
    return [[0] * len(p) + v for p, v in zip(PROMPTS, values, strict=True)]
