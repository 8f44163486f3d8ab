"""The tests of samepolicy, one folder per area."""
