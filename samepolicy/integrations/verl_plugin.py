"""What verl's entry point `verl.plugins` names; importing it is the request to attach, so nothing else imports it.

verl hides an exception at this place, so a failure is said in the log before it is passed on.
"""

import logging

from samepolicy.integrations.verl import attach

try:
    attach()
except Exception as error:
    logging.getLogger("samepolicy").warning(
        "samepolicy: this verl could not be attached to (%s: %s); training goes on without the monitor, and "
        "`samepolicy doctor verl` shows what has moved.",
        type(error).__name__,
        error,
    )
    raise
