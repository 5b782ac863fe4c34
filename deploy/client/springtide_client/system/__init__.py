"""What every package needs of the operating system: whole files, sizes, the clock, retries."""
