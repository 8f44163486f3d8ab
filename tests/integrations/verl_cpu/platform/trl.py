"""verl 0.9.1 patches this class wherever a package `trl` is found, and TRL 1.16 has it no more."""


class AutoModelForCausalLMWithValueHead:
    """A name to patch."""
