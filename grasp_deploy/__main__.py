"""Run the command line with `python -m grasp_deploy`."""

from grasp_deploy.cli import main

if __name__ == "__main__":
    main()
