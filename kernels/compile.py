"""Compiles the CPU kernels into Numba's cache, so that the first start is as quick as any: `python -m kernels.compile`."""


def main() -> None:
    """Compile every verb once for the types it is called with."""


if __name__ == "__main__":
    main()
