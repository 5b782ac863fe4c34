"""The subcommands of `springtide`, one module each: HELP, add_arguments, run. Heavy imports are inside `run`."""
