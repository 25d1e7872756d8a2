"""Personal notices: events by e-mail, as each person chooses."""
