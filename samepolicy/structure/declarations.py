"""What the two sides' declarations show when laid side by side; a difference here is a lead, and the gap decides."""

from dataclasses import asdict

from samepolicy.records.declared import dtype_of, effective, trainer_itself
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.structure.fact import Fact, Test
from samepolicy.structure.ids import by_text, declared, same_prompts


def template(run: Run) -> Fact:
    """Both sides must be given the same prompt ids, which equal chat templates alone do not show."""
    it, ours, theirs = Test("template", "template"), run.rollout.template, trainer_itself(run).template
    rendered = run.info.get("prompts_rendered")
    if isinstance(rendered, dict) and rendered.get("different"):
        share = f"{rendered['different']} of {rendered['prompts']}"
        why = f"the trainer turns {share} prompts into other ids than the rollout"
        fix = "give both sides one chat template and tokenizer, or train on the ids that the rollout was given"
        return it.broken(f"{why}, as under another chat template ({rendered['example']})", fix=fix)
    same = same_prompts(run)
    if same is False:
        why = "the trainer scored other prompt ids than the rollout was given"
        fix = "give the trainer the prompt ids that the rollout was given"
        return it.broken(why, fix=fix)
    if same:
        differ = ours and theirs and ours != theirs
        if by_text(run).get("sent") == "text":
            return it.passed("the server was sent the text of the trainer's prompt ids, and renders no template")
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
    it, ours, theirs = Test("sampling", "sampling"), run.rollout.sampling, trainer_itself(run).sampling
    if ours is None or theirs is None:
        what = "no sampling parameters; declare temperature, top-p, top-k and which log-prob is kept"
        return it.unchecked(f"{_silent(ours, theirs)} {what}")
    a, b = asdict(effective(ours)), asdict(effective(theirs))
    different = [f"{key} {a[key]} against {b[key]}" for key in a if a[key] != b[key]]
    if different:
        why = f"the declared sampling of rollout and trainer differs: {', '.join(different)}"
        return it.failed(why)
    changed = ", ".join(f"{k} {v}" for k, v in effective(ours).changed.items()) or "neutral settings"
    return it.passed(f"both sides declare {changed}")


def _silent(ours: object, theirs: object) -> str:
    """Who declares nothing, with the verb.

    >>> _silent(None, None), _silent("a", None)
    ('the rollout and the trainer declare', 'the trainer declares')
    """
    who = [f"the {side}" for side, value in (("rollout", ours), ("trainer", theirs)) if not value]
    return f"{' and '.join(who)} {'declare' if len(who) > 1 else 'declares'}"


def semantics(run: Run) -> tuple[Fact, ...]:
    """What the recorded values themselves say they are of, where a distribution was at hand to read them by."""
    found = run.info.get("semantics")
    if not isinstance(found, dict) or found.get("status") not in ("agrees", "disagrees"):
        return ()
    it, why = Test("log-prob semantics", "sampling"), str(found.get("sentence"))
    return (it.passed(why),) if found["status"] == "agrees" else (it.failed(why),)


def weights(run: Run) -> Fact:
    """Equal fingerprints show equal weights; unequal ones may only come from another dtype or engine."""
    it, ours, theirs = Test("weights", "weights"), run.rollout.weights, trainer_itself(run).weights
    if not ours or not theirs:
        why = f"{_silent(ours, theirs)} no fingerprint of the weights"
        return it.unchecked(why)
    if ours == theirs:
        return it.passed(f"both sides declare the same weights ({ours})")
    alike = run.rollout.engine == run.trainer.engine and dtype_of(run.rollout) == dtype_of(run.trainer)
    if alike:
        why = f"the declared weights differ: rollout {ours}, trainer {theirs}"
        return it.failed(why)
    why = f"the fingerprints differ (rollout {ours}, trainer {theirs}), as they may across engines and dtypes"
    return it.unchecked(f"{why}; compare the tensors")


def other_model(run: Run) -> tuple[str, ...]:
    """A sentence where the reference that scored is clearly another model than its side declares.

    Only fingerprints of one engine in one dtype are of the same thing.
    """
    reference = run.info.get("reference", {})
    owner = reference.get("owner")
    if owner not in ("rollout", "trainer"):
        return ()
    given, told = Side.from_dict({k: v for k, v in reference.items() if k != "owner"}), getattr(run, owner)
    alike = given.engine == told.engine and dtype_of(given) == dtype_of(told)
    if not alike or None in (given.weights, told.weights) or given.weights == told.weights:
        return ()
    return (
        f"The model that was given for the {owner} has other weights ({given.weights}) than the run's {owner} "
        f"declares ({told.weights}): what is said by that model holds only if they are those that were trained.",
    )


def routing(run: Run) -> Fact:
    """A model without experts has no routes to differ in."""
    it, experts = Test("routing", "routing"), declared(run, "experts")
    if experts == 0:
        return it.passed("the model has no experts to route to")
    why = f"the routes of {experts} experts are not recorded"
    if experts is None:
        why = "it is not declared whether the model has experts"
    return it.unchecked(f"{why}; record the routed experts on both sides")
