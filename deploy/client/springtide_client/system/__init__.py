"""The operating system as every package needs it: whole files, sizes, the clock, retries."""
