"""`python -m batchq.cli`: the `batchq` command if the script is not on PATH."""

from batchq.cli.main import main

if __name__ == "__main__":
    main(prog_name="batchq")
