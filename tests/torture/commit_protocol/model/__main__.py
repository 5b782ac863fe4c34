"""An executable model of the log of many writers: R ranks train one model, each writes its share of every version.

Random schedules move every process at once (teams of 1 to 4 ranks living, dying one by one, frozen, replaced by teams
of another size; mergers; followers; kill -9; power loss of one host or of all) over a few keys; whatever anyone reads
is compared with a plain dictionary. One trainer is a team of one. Each rank has its tiers (device, host, spill, base);
rank 0 writes the exact state of the net at its own pace. Each rule of the protocol can be switched off by name: a rule
whose absence breaks nothing is not needed, or not tested. The model knows nothing of bytes, threads or speed;
`model_world.py` beside it does the same with the real writers, compactor and readers, but without tiers.

    python -m tests.torture.commit_protocol.model rules        the rules, in the order in which one meets them
    python -m tests.torture.commit_protocol.model run [--seconds 60] [--seed 0] [--off RULE]
                                         random schedules; the first violation is shrunk and printed
    python -m tests.torture.commit_protocol.model mutants [RULE]... [--seconds 10] [--story]
                                         switch off one rule at a time and look for a schedule that breaks

Promises: C1 every sample and order counts exactly once. C2 a view is one version, all shards and the dense net alike.
C3 a zombie changes nothing that is read. C4 kills alone lose no published version that has its exact state. C5 power
loss loses no durable version. C6 what was forgotten does not come back. C7 no number is used twice. C8 when all is
quiet every follower arrives at the newest version. C9 a recall gives the newest value of this run.

What the model takes for granted: (a) ranks of one epoch speak only to each other, in order; (b) a step is a collective:
no rank begins an operation before all ranks have finished the one before it; (c) exclusive create is atomic for all
hosts; (d) an append to the main chain is seen by all hosts at once, one to a shard file when it is shown
(`written-is-seen`); (e) fsync of a file or of the folder makes durable whatever its caller can see there, whoever wrote
it.
"""

import argparse
import sys

from tests.torture.commit_protocol.model.rules import EXTRA, RULES
from tests.torture.commit_protocol.model.schedules import SCHEDULES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["rules", "run", "mutants"])
    parser.add_argument("names", nargs="*", help="rules to switch off, one at a time; RULE+RULE together")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--off", action="append", default=[])
    parser.add_argument("--story", action="store_true", help="shrink and print what breaks without the rule")
    args = parser.parse_intermixed_args()
    known = {**RULES, **EXTRA}
    if unknown := {r for name in args.names + args.off for r in name.split("+")} - set(known):
        sys.exit(f"no such rule: {', '.join(unknown)}; `rules` lists them")
    if args.command == "rules":
        print("\n".join(f"{name:21} {sentence}" for name, sentence in RULES.items()))
        print("\nNot needed:\n" + "\n".join(f"{name:21} {sentence}" for name, sentence in EXTRA.items()))
    elif args.command == "run":
        schedules, steps, found = SCHEDULES.search(args.off, args.seconds or 60, (120, 300, 700), args.seed)
        if found:
            sys.exit(f"seed {found[0].seed}:\n{SCHEDULES.shrunk_story(found[0], args.off)}")
        print(f"{schedules} schedules, {steps} steps, no violation")
    else:
        for name in args.names or known:
            schedules, steps, found = SCHEDULES.search(
                off := name.split("+"), args.seconds or 10, (120, 300, 700), args.seed
            )
            for broken in found:
                print(f"{name:21} schedule {schedules}, after {broken.seconds:.1f} s: {broken.why[:90]}", flush=True)
                if args.story:
                    print(SCHEDULES.shrunk_story(broken, off), flush=True)
            if not found:
                print(f"{name:21} not missed in {schedules} schedules, {steps} steps", flush=True)


if __name__ == "__main__":
    main()
