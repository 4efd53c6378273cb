"""`python -m dynamo.mocker`."""

from dynamo.cli.mocker.command import main

if __name__ == "__main__":
    main()
