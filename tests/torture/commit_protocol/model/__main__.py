"""An executable model of the storage protocol: tiers, spill, versions, bases, epochs, followers, commands ("orders").

Random schedules move every process at once (trainers living, dead or replaced; mergers; followers; kill -9; power loss)
over a few keys; whatever anyone reads is compared with a plain dictionary. Each rule of the protocol can be switched
off by name: a rule whose absence breaks nothing is not needed. The model knows nothing of bytes, threads, torch or
speed; `model_world.py` beside it does the same with the real writer, compactor and readers, but without tiers.

    python -m tests.torture.commit_protocol.model rules                              the rules
    python -m tests.torture.commit_protocol.model run [--seconds 300] [--off RULE]   random schedules under the rules;
                                                        the first violation is shrunk and printed
    python -m tests.torture.commit_protocol.model mutants [RULE]... [--seconds 30]   switch off one rule at a time, look
                                                        for a schedule that breaks, shrink and print it

Invariants: I1 a recall gives the newest value of this run. I2 a restart gives the state of the version it restarts
from, nothing durable is lost, every sample and order counts exactly once. I3 a view is one version, rows and dense net
alike. I4 a zombie changes nothing that is read. I5 what was forgotten does not come back, and no reader sees an order
undone. I6 a missing file is noticed and never needed.
"""

import argparse
import sys

from tests.torture.commit_protocol.model.rules import OPTIONS, RULES
from tests.torture.commit_protocol.model.schedules import SCHEDULES


def main():
    parser = argparse.ArgumentParser(
        prog="model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["rules", "run", "mutants"])
    parser.add_argument("names", nargs="*", help="rules to switch off, one at a time; RULE+RULE together")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--off", action="append", default=[])
    args = parser.parse_args()
    known = {**RULES, **OPTIONS}
    if unknown := {r for name in args.names + args.off for r in name.split("+")} - set(known):
        sys.exit(f"no such rule: {', '.join(unknown)}; `rules` lists them")
    if args.command == "rules":
        print("\n".join(f"{name:22} {sentence}" for name, sentence in known.items()))
    elif args.command == "run":
        schedules, steps, found = SCHEDULES.search(args.off, args.seconds or 300, (80, 200, 500), args.seed)
        if found:
            sys.exit(f"seed {found[0].seed}:\n{SCHEDULES.shrunk_story(found[0], args.off)}")
        print(f"{schedules} schedules, {steps} steps, no violation")
    else:
        for name in args.names or RULES:
            schedules, _, found = SCHEDULES.search(
                off := name.split("+"), args.seconds or 30, (150, 400), args.seed, keep=3
            )
            print(
                f"== {name}: {f'{len(found)} broken of' if found else 'not missed in'} {schedules} schedules",
                flush=True,
            )
            if found:
                print(min((SCHEDULES.shrunk_story(broken, off) for broken in found), key=len), flush=True)


if __name__ == "__main__":
    main()
