"""Values of a type that no annotation allows, as untyped callers hand them over: one sentence, never a traceback.

They run in a plain interpreter, since in this one every annotation is checked at each call.
"""

import json
import subprocess
import sys

CASES = {
    "temperature must be a number": "sp.Sampling(temperature='1')",
    "top_k must be a whole number": "sp.Sampling(top_k=1.5)",
    "max_tokens must be a whole number": "sp.Sampling(max_tokens=2.0)",
    "seed must be a whole number": "sp.Sampling(seed=None)",
    "logprobs must be text": "sp.Sampling(logprobs=1)",
    "A side's dtype must be a str": "sp.Side(dtype=5)",
    "A side's engine must be a str": "sp.Side(engine=['x'])",
    "A side's sampling must be a Sampling": "sp.Side(sampling={'temperature': 1.0})",
    "A side's extra must be a dict": "sp.Side(extra=None)",
    "rollout must be a Side": "sp.Run.from_lists(rollout_logp=[[-1.0]], rollout={'engine': 'vllm'})",
    "info must be a Mapping": "sp.Run.from_lists(rollout_logp=[[-1.0]], info=3)",
    "step must be a whole number, 0 or more, but it is '1'": "sp.write(run, folder / 'a', step='1')",
    "step must be a whole number, 0 or more, but it is 1.5": "sp.write(run, folder / 'b', step=1.5)",
    "Prompt 0 is neither a text, nor a list of token ids, nor a conversation (None)": "check(prompts=[None])",
    "Prompt 1 is neither a text": "check(prompts=['a', 3])",
    "Prompt 0 is neither": "check(prompts=[[1.5]])",
    "neither a text, nor": "check(prompts=[{'role': 'user', 'content': 'x'}])",
    "samples must be a whole number": "check(prompts=['a'], samples=1.5)",
    "dtype must be a str, but it is 5": "sp.read(dump({'run': {'rollout': {'dtype': 5}}}))",
    "every and calm must be whole numbers from 0": "sp.Monitor(every='2')",
    "A queue needs a limit": "sp.Monitor(queue='4')",
    'and "wait" or "drop"': "sp.Monitor(when_full='skip')",
    "such as (8, 10), not 5": "sp.Monitor(grid=5)",
    "such as (8, 10), not (5,)": "sp.Monitor(grid=(5,))",
    "loggers is a tuple of what takes a step": "sp.Monitor(loggers=print)",
    'rollout declares a side, such as Side(dtype="bfloat16")': "sp.Monitor(rollout='bfloat16')",
    "None is no step; give": "step(None)",
    "'7' is no step; give": "step('7')",
    "1.5 is no step; give": "step(1.5)",
    "An engine is told as text, such as": "sp.engine(None)",
    "seed must be a whole number, but it is 'a'": "sp.engine('toy:', seed='a')",
    "dtype must be text, but": "sp.engine('toy:', dtype=np.float32)",
    "An engine is wanted as the trainer, and this is dict": "sp.check(rollout=toy, trainer={}, prompts=['a'])",
    "An engine is wanted as the rollout, and this is str": "paths(rollout='toy:', trainer=toy, prompts=None)",
    "and this is NoneType; give its path": "sp.read(None)",
    "and this is list; give its path": "sp.read([folder])",
    "and this is int; give its path": "sp.write(run, 5)",
    "and this is bytes; give its path": "sp.report(b'page.html', run)",
    "What is written is a Run, and this is NoneType": "sp.write(None, folder / 'c')",
    "steps must be a list of whole numbers, but it is 'a'": "sp.read(folder, steps='a')",
    "steps must be a list of whole numbers, but it is [1.5]": "sp.read(folder, steps=[1.5])",
    "samples must be a list of whole numbers, but it is 0": "sp.read(folder, samples=0)",
    "finish_reasons must be a list of texts, but it is 'stop'": "sp.read(folder, finish_reasons='stop')",
    "finish_reasons must be a list of texts, but it is [5]": "sp.read(folder, finish_reasons=[5])",
    "temperature must be a number, but": "sp.read(dump({'run': {'rollout': {'sampling': {'temperature': '1'}}}}))",
}

PROGRAM = """
import json, logging.handlers, sys, tempfile
from functools import partial
from pathlib import Path
import numpy as np
import samepolicy as sp
from samepolicy.paths import paths

folder = Path(tempfile.mkdtemp())
run = sp.Run.from_lists(rollout_logp=[[-1.0]])
toy = sp.engine("toy:")
check = partial(sp.check, rollout=toy, trainer=toy)

def dump(head):
    file = folder / "dump.jsonl"
    file.write_text(json.dumps(head) + "\\n" + json.dumps({"rollout_logp": [-1.0]}))
    return file

def step(number):  # what is wrong is logged, never raised
    logp, heard = np.array([[-1.0]]), logging.handlers.BufferingHandler(9)
    logging.getLogger("samepolicy.monitor").addHandler(heard)
    found = sp.Monitor()(step=number, trainer=logp, rollout=logp, mask=logp < 0)
    logging.getLogger("samepolicy.monitor").removeHandler(heard)
    assert found["samepolicy/monitor/skipped"] == 1
    raise sp.errors.InputError(*(record.getMessage() for record in heard.buffer))

said = []
for case in json.loads(sys.argv[1]):
    try:
        eval(case)
        said.append("nothing")
    except sp.errors.InputError as error:
        said.append(str(error))
    except Exception as error:
        said.append(repr(error))
print(json.dumps([said, sorted(path.name for path in folder.iterdir())]))
"""


def test_every_refusal_is_a_sentence():
    command = [sys.executable, "-c", PROGRAM, json.dumps([*CASES.values()])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, files = json.loads(done.stdout)
    for words, sentence in zip(CASES, said, strict=True):
        assert words in sentence, sentence
        assert sentence.endswith("."), sentence
    assert files == ["dump.jsonl"]
