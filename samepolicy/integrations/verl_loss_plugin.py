"""What `actor_rollout_ref.model.external_lib` names: importing it in a worker of verl's registers our policy loss.

verl imports it where it makes its model configuration, before any loss is computed. Elsewhere an import does nothing.
"""

import sys

if "verl" in sys.modules:
    from samepolicy.integrations.verl_loss import register

    register()
