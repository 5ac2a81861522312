"""Programs: what is known of one kind of program."""
