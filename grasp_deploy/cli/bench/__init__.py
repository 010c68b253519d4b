"""`grasp-deploy bench`: gains of compression, measured."""
