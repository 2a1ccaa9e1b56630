"""``python -m headrace``, and the file that ``spark-submit`` takes."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
