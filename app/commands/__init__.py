"""The subcommands of `springtide`, one file each: HELP, add_arguments, run. Heavy imports are inside `run`."""
