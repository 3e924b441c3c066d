"""The one error that everything about datasets raises."""

from looprl.errors import UserError


class DatasetError(UserError):
    """A dataset, or a row of it, cannot be used; the message says what is wrong, where, and what to do."""
