"""python -m kvlayout: the command line."""

from kvlayout.cli import main

if __name__ == "__main__":
    main()
