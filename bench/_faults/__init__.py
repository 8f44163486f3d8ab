"""Real faults on a real model: a trainer scores, or a rollout records, something else than it declares.

Nothing here uses the code of `samepolicy.causes`: the trainer is a plain transformers forward with the mistake in it.
`lists` holds the cases; `models`, `prompts`, `arrays` and `trainer` hold the mistakes that they are made of.
"""
