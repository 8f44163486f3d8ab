"""The trainer of the bench: one plain transformers forward a response, with a mistake on request."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

MICRO_BATCH = PACK = 4
"""Neighbouring prompts that are padded to the longest of them, and neighbouring samples in one packed row."""


class Trainer:
    """A transformers model that scores responses one by one."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch, self.folder = torch, folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def score(
        self,
        prompts: list[list[int]],
        responses: list[list[int]],
        *,
        dtype: str = "bfloat16",
        temperature: float = 1.0,
        scale: float = 1.0,
        model: Callable[[Any], Any] | None = None,
        prompt: Callable[["Trainer", list[int]], list[int]] | None = None,
        response: Callable[["Trainer", list[int]], list[int]] | None = None,
        logits: Callable[[Any, list[int]], Any] | None = None,
        layout: str = "",
        train: bool = False,
        head: str = "float32",
        seed: int = 0,
    ) -> list[np.ndarray]:
        """Log-probs of each response's tokens; every keyword but `dtype` and `seed` is a mistake.

        Where other response ids are scored, values stand by position, and the last one fills up what is lacking.
        """
        torch = self.torch
        network = copy.deepcopy(self.plain)
        network = (model(network) if model else network).to(getattr(torch, dtype)).train(train)
        found: list[np.ndarray] = []
        before: list[int] = []
        torch.manual_seed(seed)
        for row, (asked, answer) in enumerate(zip(prompts, responses, strict=True)):
            ids = prompt(self, asked) if prompt else asked
            told = response(self, answer) if response else answer
            near = prompts[row - row % MICRO_BATCH :][:MICRO_BATCH]
            padding = [self.tokenizer.pad_token_id] * (max(map(len, near)) - len(asked))
            arguments, begin = _arguments(torch, layout, ids, told, before, padding)
            with torch.no_grad():
                raw = network(**arguments).logits[0, begin - 1 : begin - 1 + len(told)].float()
            raw = logits(raw, told) if logits else raw
            logp = (raw.to(getattr(torch, head)) / temperature).log_softmax(-1).float() / scale
            own = logp.gather(-1, torch.tensor(told)[:, None])[:, 0].numpy()
            found.append(np.pad(own, (0, max(len(answer) - len(own), 0)), mode="edge")[: len(answer)])
            before = before + ids + told if (row + 1) % PACK else []
        return found

    def sample(
        self, prompts: list[list[int]], *, tokens: int, seed: int, **settings: Any
    ) -> tuple[list[list[int]], list[np.ndarray]]:
        """Responses by transformers' own `generate`, in bfloat16, and their processed log-probs.

        Args:
            prompts: prompt ids.
            tokens: most tokens of a response.
            seed: torch's seed.
            **settings: passed on to `generate`.
        """
        torch, longest, end = self.torch, max(map(len, prompts)), self.tokenizer.eos_token_id
        network = copy.deepcopy(self.plain).to(torch.bfloat16)
        ids = torch.tensor([[end] * (longest - len(row)) + row for row in prompts])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        torch.manual_seed(seed)
        found = network.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=tokens,
            pad_token_id=end,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        new = found.sequences[:, longest:]
        logp = torch.stack(found.scores, 1).float().log_softmax(-1).gather(-1, new[..., None])[..., 0]
        ends = [int((row == end).nonzero()[0]) + 1 if (row == end).any() else len(row) for row in new]
        pairs = list(zip(new, logp, ends, strict=True))
        return [row[:n].tolist() for row, _, n in pairs], [values[:n].numpy() for _, values, n in pairs]


def _arguments(
    torch: Any, layout: str, ids: list[int], answer: list[int], before: list[int], padding: list[int]
) -> tuple[dict[str, Any], int]:
    """What the forward is called with, and where the response begins; a micro-batch adds `padding` to the prompt."""
    tokens = ids + answer
    mask = [1] * len(tokens)
    positions = list(range(len(tokens)))
    begin = len(ids)
    if layout == "hidden prompt":
        mask[: len(ids)] = [0] * len(ids)
    elif layout == "seen padding":
        tokens, mask, begin = padding + tokens, [1] * len(padding) + mask, begin + len(padding)
        positions = list(range(len(tokens)))
    elif layout == "gap":
        positions = [*range(len(ids)), *(len(ids) + len(padding) + i for i in range(len(answer)))]
    elif layout == "packed" and before:
        tokens, begin = before + tokens, begin + len(before)
        mask, positions = [1] * len(tokens), list(range(len(tokens)))
    arguments = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    return {name: torch.tensor([value]) for name, value in arguments.items()}, begin
