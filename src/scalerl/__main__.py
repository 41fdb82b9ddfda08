"""`python -m scalerl`: the command line where the script is not on the path."""

from scalerl.cli import main

main()
