"""What the two sides' declarations show when laid side by side; a difference here is a lead, and the gap decides."""

from dataclasses import asdict

from samepolicy.records.declared import dtype_of, effective
from samepolicy.records.run import Run
from samepolicy.structure.fact import Fact, Test
from samepolicy.structure.ids import declared, same_prompts


def template(run: Run) -> Fact:
    """Both sides must be given the same prompt ids, which equal chat templates alone do not show."""
    it, ours, theirs = Test("template", "template"), run.rollout.template, run.trainer.template
    same = same_prompts(run)
    if same is False:
        why = "the trainer scored other prompt ids than the rollout was given"
        fix = "give the trainer the prompt ids that the rollout was given"
        return it.broken(why, fix=fix)
    if same:
        differ = ours and theirs and ours != theirs
        note = f", though the declared templates differ ({ours}, {theirs})" if differ else ""
        return it.passed(f"both sides were given the same prompt ids{note}")
    if ours and theirs and ours != theirs:
        why = f"the declared chat templates differ: rollout {ours}, trainer {theirs}"
        return it.failed(why)
    known = "both sides declare one chat template, but " if ours and theirs else ""
    why = f"{known}the prompt ids that the trainer scored are not recorded; record trainer_prompt_ids"
    return it.unchecked(why)


def sampling(run: Run) -> Fact:
    """Both sides must apply the same settings to the log-probs that they record."""
    it, ours, theirs = Test("sampling", "sampling"), run.rollout.sampling, run.trainer.sampling
    if ours is None or theirs is None:
        who = " and the ".join(s for s, v in (("rollout", ours), ("trainer", theirs)) if v is None)
        why = f"the {who} declares no sampling parameters; declare temperature, top-p, top-k and which log-prob is kept"
        return it.unchecked(why)
    a, b = asdict(effective(ours)), asdict(effective(theirs))
    different = [f"{key} {a[key]} against {b[key]}" for key in a if a[key] != b[key]]
    if different:
        why = f"the declared sampling of rollout and trainer differs: {', '.join(different)}"
        return it.failed(why)
    changed = ", ".join(f"{k} {v}" for k, v in effective(ours).changed.items()) or "neutral settings"
    return it.passed(f"both sides declare {changed}")


def weights(run: Run) -> Fact:
    """Equal fingerprints show equal weights; unequal ones may only come from another dtype or engine."""
    it, ours, theirs = Test("weights", "weights"), run.rollout.weights, run.trainer.weights
    if not ours or not theirs:
        who = " and the ".join(s for s, v in (("rollout", ours), ("trainer", theirs)) if not v)
        why = f"the {who} declares no fingerprint of the weights"
        return it.unchecked(why)
    if ours == theirs:
        return it.passed(f"both sides declare the same weights ({ours})")
    alike = run.rollout.engine == run.trainer.engine and dtype_of(run.rollout) == dtype_of(run.trainer)
    if alike:
        why = f"the declared weights differ: rollout {ours}, trainer {theirs}"
        return it.failed(why)
    why = f"the fingerprints differ (rollout {ours}, trainer {theirs}), as they may across engines and dtypes"
    return it.unchecked(f"{why}; compare the tensors")


def routing(run: Run) -> Fact:
    """A model without experts has no routes to differ in."""
    it, experts = Test("routing", "routing"), declared(run, "experts")
    if experts == 0:
        return it.passed("the model has no experts to route to")
    why = f"the routes of {experts} experts are not recorded"
    if experts is None:
        why = "it is not declared whether the model has experts"
    return it.unchecked(f"{why}; record the routed experts on both sides")
