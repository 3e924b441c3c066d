"""The errors that a user can put right: the command prints them without a traceback."""


class UserError(ValueError):
    """The user's command, recipe or data is wrong; the message says what, where and what to do."""


class RecipeError(UserError):
    """A recipe file or a flag that overrides it cannot be used as it stands."""
