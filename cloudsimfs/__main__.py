from cloudsimfs.cli import main

main()
