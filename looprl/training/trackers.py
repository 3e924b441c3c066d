"""The trackers that `report_to` names: checked before anything is trained, since none comes with looprl."""

from collections.abc import Iterable

from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from looprl.errors import UserError
from looprl.suggest import did_you_mean

_PACKAGES = {"azure_ml": "azureml-sdk"}  # the others are named as the tracker
_NOT_DETECTED = "flyte"  # transformers does not say whether it is installed


def check_trackers(report_to: Iterable[str]) -> None:
    """Check that every tracker is known to transformers and installed.

    Raises:
        UserError: one is unknown, or is not installed; the message says how to install it.
    """
    installed = get_available_reporting_integrations()
    for name in report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(
                f"report_to: unknown tracker {name!r}.{did_you_mean(name, INTEGRATION_TO_CALLBACK)} "
                "tensorboard, trackio and wandb are the usual ones, none turns trackers off"
            )
        if name not in installed and name != _NOT_DETECTED:
            package = _PACKAGES.get(name, name)
            raise UserError(
                f"report_to names {name}, which is not installed: run `python -m pip install {package}` in looprl's "
                "environment, or leave report_to out; metrics.jsonl and report.html are written in any case"
            )
