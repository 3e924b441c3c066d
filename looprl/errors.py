"""What a command ends with and prints without a traceback: errors that a user can put right, and being told to end."""


class UserError(ValueError):
    """The user's command, recipe or data is wrong; the message says what, where and what to do."""


class Terminated(Exception):
    """SIGTERM ended the run, which has left everything in order; the message says how to go on."""


class RecipeError(UserError):
    """A recipe file or a flag that overrides it cannot be used as it stands."""
