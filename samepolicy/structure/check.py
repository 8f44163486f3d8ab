"""All structural tests of a run, in ladder order."""

from samepolicy.records.run import Run
from samepolicy.structure import declarations, ids, inside, masks, values
from samepolicy.structure.fact import Fact


def check(run: Run) -> tuple[Fact, ...]:
    """Test what the run's own columns and declarations show, for any source of data.

    Args:
        run: any run; a test whose columns are not there is not checked, or left out where it could not apply.

    Returns:
        One fact per test, in the order of the ladder.
    """
    aligned = run.aligned() if "trainer_response_ids" in run else run
    return (
        *ids.check(run),
        *values.placeholders(aligned),
        declarations.template(run),
        values.shift(aligned),
        *masks.check(aligned),
        declarations.sampling(run),
        *declarations.semantics(run),
        *(inside.tensors(run) or (declarations.weights(run),)),
        declarations.routing(run),
        *inside.layers(run),
        *values.numbers(aligned),
        *values.copy(aligned),
    )
