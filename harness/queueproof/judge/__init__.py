"""The specification, one pure step function, and the checks of a history against it."""
