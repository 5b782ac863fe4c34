"""`python -m tests.torture.join --kills 50`, with SPRINGTIDE_TEST_BROKER=apache: what `make torture` runs."""

from tests.torture.join.torture import main

if __name__ == "__main__":
    main()
