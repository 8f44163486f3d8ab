"""A reward that a 135M model's samples differ in, so that GRPO's advantages are not all zero."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **more):
    """1 for the right number, and a little for digits."""
    digits = sum(character.isdigit() for character in solution_str)
    return float(ground_truth in solution_str) + 0.1 * digits / max(1, len(solution_str))
