"""Many trainers of one model: who this process is among the ranks of a launch, and what they agree on."""
