"""One file a command: HELP, add_arguments(parser), run(arguments). Heavy parts are imported inside run."""
