"""The engines of the bench, its rollouts, and the runs that faults make of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import samepolicy as sp
from _faults import models
from _faults.base import Fault
from _faults.trainer import Trainer
from _publish import ROOT
from samepolicy.demo import PROMPTS
from samepolicy.floor import add_evidence
from samepolicy.testing import smollm2_folder

TOKENS = 64
FOLDER = ROOT / "build" / "faults"
SCORED = ("rollout_logp", "trainer_logp")
KEPT = ("cause", "parameters", "explained", "interval", "nats", "side", "proof", "alternatives")
REPORT = (
    "Why do cats purr?",
    "Give me a recipe for pancakes without eggs.",
    "Write a limerick about a lost umbrella.",
    "What is 23 times 19? Explain each step.",
    "Describe how a bicycle stays upright.",
    "Name five rivers of South America.",
    "How would you explain money to a Martian?",
    "Write a short letter that declines an invitation.",
    "What causes thunder?",
    "Compare tea and coffee in three sentences.",
    "List the planets by their size.",
    "Tell a story about a clock that runs backwards.",
    "How do I remove a wine stain from a carpet?",
    "What is the difference between weather and climate?",
    "Suggest a name for a bakery and say why.",
    "Explain recursion with an everyday example.",
)


def slug(text: str) -> str:
    """A text as a file name."""
    return re.sub(r"[^\w.+-]+", "_", text)


class Bench:
    """The engines, the rollouts, and what they are put together to, on one split of the prompts or on both."""

    def __init__(self, split: str) -> None:
        self.split, self.path = split, smollm2_folder(FOLDER)
        self.trainer = Trainer(str(self.path))
        self._engines: dict[str, Any] = {}
        develop = PROMPTS.read_text("utf-8").splitlines()
        texts = {"develop": develop, "report": REPORT, "both": [*develop, *REPORT]}[split]
        self.prompts = sp.Ragged.from_lists([self.engine().encode(text) for text in texts], dtype=np.int64)

    def engine(self, dtype: str = "bfloat16", adapter: tuple[float, float] | None = None, kind: str = "hf") -> Any:
        """An engine, loaded once; of those with an adapter only the last is kept."""
        key = f"{kind} {dtype} {adapter}"
        if key not in self._engines:
            self._engines = {k: e for k, e in self._engines.items() if k.endswith("None")}
            more = {"adapter": str(self.adapter(adapter))} if adapter else {}
            self._engines[key] = sp.engine(f"{kind}:{self.path}", dtype=dtype, **more)
        return self._engines[key]

    def adapter(self, told: tuple[float, float]) -> Path:
        """The folder of an adapter."""
        return models.adapter(FOLDER / f"adapter-{told[0]}-{told[1]}", *told, self.trainer.plain)

    def checkpoint(self, name: str) -> str:
        """The folder of earlier weights."""
        folder = FOLDER / slug(name)
        if not folder.exists():
            import copy

            models.CHECKPOINTS[name](copy.deepcopy(self.trainer.plain)).save_pretrained(folder)
            self.trainer.tokenizer.save_pretrained(folder)
        return str(folder)

    def rollout(self, settings: dict[str, Any]) -> sp.Run:
        """A rollout, from disk if it is there."""
        folder = FOLDER / slug("-".join(["rollout", self.split, *(f"{k}{v}" for k, v in settings.items())]))
        if not folder.exists():
            sp.write(self._sampled(**settings), folder)
        return sp.read(folder)

    def _sampled(
        self,
        *,
        seed: int = 1,
        engine: str = "hf",
        dtype: str = "bfloat16",
        adapter: tuple[float, float] | None = None,
        generate: dict[str, Any] | None = None,
        max_tokens: int = TOKENS,
        **settings: Any,
    ) -> sp.Run:
        """A rollout: by an engine of this package, or by transformers' own `generate`."""
        seed += 10 * (self.split == "report")
        sampling = sp.Sampling(max_tokens=max_tokens, seed=seed, **settings)
        sampler = self.engine(dtype, adapter, engine)
        if generate is None:
            return sampler.generate(self.prompts, sampling)  # type: ignore[no-any-return]
        prompts = [row.tolist() for row in self.prompts]
        responses, logp = self.trainer.sample(prompts, tokens=max_tokens, seed=seed, **generate)
        return sp.Run.from_lists(
            prompt_ids=prompts, response_ids=responses, rollout_logp=logp, rollout=sampler.describe(sampling)
        )

    def declared(self, fault: Fault) -> tuple[sp.Run, str]:
        """The rollout with what both sides say, and its scores under the reference; and a name for it."""
        run = self.rollout(fault.rollout)
        assert run.rollout.sampling is not None
        told = run.rollout.sampling
        if fault.declared is not None:
            told = sp.Sampling(**fault.declared, max_tokens=told.max_tokens)
        engine = self.engine(fault.dtype, fault.adapter)
        sides = {"rollout": replace(run.rollout, sampling=told), "trainer": engine.describe(told)}
        name = slug(f"scored-{self.split}-{fault.rollout}-{fault.declared}-{fault.dtype}-{fault.adapter}")
        if not (FOLDER / name).exists():
            sp.write(add_evidence(replace(run, **sides), engine), FOLDER / name)
        return sp.read(FOLDER / name), name

    def run(self, faults: Sequence[Fault]) -> sp.Run:
        """A run with these faults."""
        whole = replace(
            faults[0],
            rollout={k: v for fault in faults for k, v in fault.rollout.items()},
            trainer={k: v for fault in faults for k, v in fault.trainer.items()},
            declared=next((f.declared for f in faults if f.declared is not None), None),
            adapter=next((f.adapter for f in faults if f.adapter is not None), None),
        )
        run, _ = self.declared(whole)
        mistakes = dict(whole.trainer)
        if mistakes.pop("adapter", False):
            assert whole.adapter is not None
            mistakes["model"] = models.adapted(self.adapter(whole.adapter))
        prompts, responses = ([row.tolist() for row in run[name]] for name in ("prompt_ids", "response_ids"))
        columns: dict[str, Any] = {
            "prompt_ids": prompts,
            "response_ids": responses,
            "rollout_logp": [row.astype(np.float64) for row in run["rollout_logp"]],
            "trainer_logp": self.trainer.score(prompts, responses, dtype=whole.dtype, **mistakes),
        }
        if mistakes.get("train"):  # of a model that does not drop, a second scoring is the first one
            second = self.trainer.score(prompts, responses, dtype=whole.dtype, seed=1, **mistakes)
            first, again = (sp.Ragged.from_lists(rows) for rows in (columns["trainer_logp"], second))
            run = sp.self_check(run, "trainer_alone", first=first, second=again)
        rng = np.random.default_rng(0)
        for fault in faults:
            columns = fault.arrays(columns, rng) if fault.arrays else columns
        if columns["response_ids"] is responses and set(columns) == {"prompt_ids", "response_ids", *SCORED}:
            return run.with_columns(**{n: sp.Ragged.from_lists(columns[n], dtype=np.float32) for n in SCORED})
        return sp.Run.from_lists(**columns, rollout=run.rollout, trainer=run.trainer)

    def judge(self, faults: Sequence[Fault]) -> dict[str, Any]:
        """What the diagnosis says of a run with these faults."""
        run = self.run(faults)
        engine = self.engine(faults[0].dtype, next((f.adapter for f in faults if f.adapter), None))
        checkpoints = [self.checkpoint(f.checkpoint) for f in faults if f.checkpoint]
        start = perf_counter()
        found = sp.diagnose(run, trainer=engine, checkpoints=checkpoints)
        return {
            "seconds": round(perf_counter() - start, 1),
            "verdict": found.verdict,
            "named": [finding.cause for finding in found.findings],
            "findings": [{key: finding.as_dict()[key] for key in KEPT} for finding in found.findings],
            "expected": {k: v for fault in faults for k, v in fault.expected.items()},
            "gap": found.gap and found.gap.as_dict(),
            "sentence": found.sentence,
        }
