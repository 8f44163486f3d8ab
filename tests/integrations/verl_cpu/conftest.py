"""What is below is installed into an environment of its own by `verl_run`; pytest has nothing to collect here."""

collect_ignore_glob = ["*"]
