"""The explorer's tabs, one a module; each draws the state when it is visible and out of date."""
