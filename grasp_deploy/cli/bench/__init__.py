"""`grasp-deploy bench`: what compression wins, measured."""
