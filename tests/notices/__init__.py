"""Personal notices by e-mail."""
