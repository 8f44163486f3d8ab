"""`samepolicy vocabulary`."""

from samepolicy.cli import options, output


def command(run: options.RunFolder, as_json: options.AsJson = False) -> None:
    """Compare the two sides' distributions over the vocabulary, by position; needs no model.

    The run holds each side's most likely tokens, as `samepolicy check … --top K --out RUN` records them.
    """
    from samepolicy.records.store import read
    from samepolicy.report import vocabulary
    from samepolicy.vocabulary import compare_distributions

    found = compare_distributions(read(run))
    output.show(vocabulary.comparison(found), found.as_dict(), as_json=as_json)
